package sparkonce.pravega;

import io.pravega.client.ClientConfig;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Plans batches for Spark, in the driver. */
public class CutStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    private static final Logger LOG = LoggerFactory.getLogger("sparkonce");
    private static final long NS_PER_MS = 1000000;
    private final CaseInsensitiveStringMap options;
    private final String name;
    private StreamClient client;
    private Planner planner;
    private Cut begun;
    private Map<Long, Long> target;
    private long answeredAtNs;
    private boolean hasAnswered;

    CutStream(CaseInsensitiveStringMap options) {
        this.options = options;
        name = options.get("stream");
    }

    public Offset deserializeOffset(String json) {
        Cut cut = Cut.parse(json);
        if (!cut.stream.equals(name)) {
            throw new IllegalStateException("The query has read the Pravega stream '" + cut.stream
                + "', and is to read '" + name + "'. Next: Give the stream that it has read, or a new checkpoint.");
        }
        return cut;
    }

    /** Returns where the query begins: the same within a process. */
    public Offset initialOffset() {
        if (begun == null) {
            Map<Long, Long> found = starting(options.get("starting"));
            begun = new Cut(name, found, planner().made(found), null);
        }
        return begun;
    }

    private Map<Long, Long> starting(String given) {
        if (given.equals("latest")) {
            return planner().tail();
        }
        if (given.equals("earliest")) {
            return StreamClient.positions(client().ends().getHeadStreamCut());
        }
        return client().given(given);
    }

    public ReadLimit getDefaultReadLimit() {
        String most = options.get("max_bytes");
        return most == null ? ReadLimit.allAvailable() : ReadLimit.maxBytes(Long.parseLong(most));
    }

    public void prepareForTriggerAvailableNow() {
        target = planner().tail();
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit.");
    }

    /** Returns the position up to which the next batch reads; its start if nothing is new. */
    public Offset latestOffset(Offset start, ReadLimit limit) {
        Cut from = (Cut) start;
        long most = limit instanceof ReadMaxBytes ? ((ReadMaxBytes) limit).maxBytes() : Long.MAX_VALUE;
        try {
            Map<Long, Long> found = planner().next(from, target, most);
            answeredAtNs = System.nanoTime();
            hasAnswered = true;
            boolean isFirst = from == begun;
            if (found.equals(from.positions) && !isFirst) {
                return from;
            }
            return new Cut(name, found, planner().made(found), isFirst ? from.positions : null);
        } catch (AwayException error) {
            long patienceNs = Long.parseLong(options.get("patience_ms")) * NS_PER_MS;
            if (!hasAnswered || System.nanoTime() - answeredAtNs > patienceNs) {
                throw error;
            }
            LOG.warn("No batch is planned for now. {}", error.getMessage());
            return start;
        }
    }

    /** Returns the parts of a batch. Of batch 0, the end knows where it began: "latest" is another place by now. */
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        Cut to = (Cut) end;
        Map<Long, Long> from = to.first == null ? ((Cut) start).positions : to.first;
        planner().check(to);
        List<InputPartition> found = new ArrayList<InputPartition>();
        for (Part part : planner().parts(from, to.positions)) {
            if (part.start < part.end) {
                found.add(part);
            }
        }
        return (InputPartition[]) found.toArray(new InputPartition[0]);
    }

    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(config(), name);
    }

    /** Returns what Spark's progress says of the source. */
    public String toString() {
        return "pravega: " + name;
    }

    public void commit(Offset end) {
    }

    public synchronized void stop() {
        if (client != null) {
            client.close();
            client = null;
        }
    }

    private ClientConfig config() {
        ClientConfig.ClientConfigBuilder made = ClientConfig.builder()
            .controllerURI(URI.create(options.get("controller")))
            .validateHostName(options.getBoolean("check_host_name", true));
        if (options.containsKey("trust_store")) {
            made = made.trustStore(options.get("trust_store"));
        }
        if (options.containsKey("user")) {
            made = made.credentials(new DefaultCredentials(options.get("password"), options.get("user")));
        }
        return made.build();
    }

    private synchronized StreamClient client() {
        if (client == null) {
            client = new StreamClient(config(), name);
            planner = new Planner(client, options.get("accept_lost"));
        }
        return client;
    }

    private synchronized Planner planner() {
        client();
        return planner;
    }
}
