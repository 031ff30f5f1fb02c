package sparkonce.pravega;

import io.pravega.client.ClientConfig;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collection;
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
    private static final long PAUSE_MS = 500;
    final CaseInsensitiveStringMap options;
    final String name;
    private final long patienceMs;
    private StreamClient client;
    private Planner planner;
    private Cut begun;
    private Map<Long, Long> target;
    private boolean isAway;
    private long awaySinceNs;

    CutStream(CaseInsensitiveStringMap options) {
        this.options = options;
        name = options.get("stream");
        patienceMs = Long.parseLong(options.get("patience_ms"));
    }

    public Offset deserializeOffset(String json) {
        Cut cut = Cut.parse(json);
        if (!cut.stream.equals(name)) {
            throw new IllegalStateException("The query has read the Pravega stream '" + cut.stream
                + "', and is to read '" + name + "'. Next: Give the stream that it has read, or a new checkpoint.");
        }
        return cut;
    }

    /** Returns the position at which the query begins, which is always the same within a process. */
    public Offset initialOffset() {
        if (begun == null) {
            begun = (Cut) patiently(null, new Question() {
                public Object ask() {
                    Map<Long, Long> found = starting(options.get("starting"));
                    return new Cut(name, found, planner().made(found), null);
                }
            });
        }
        return begun;
    }

    Map<Long, Long> starting(String given) {
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
        target = (Map<Long, Long>) patiently(null, new Question() {
            public Object ask() {
                return planner().tail();
            }
        });
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit.");
    }

    /** Returns the position up to which the next batch reads; the batch's start if nothing is new. */
    public Offset latestOffset(Offset start, ReadLimit limit) {
        final Cut from = (Cut) start;
        final long most = limit instanceof ReadMaxBytes ? ((ReadMaxBytes) limit).maxBytes() : Long.MAX_VALUE;
        final boolean isFirst = from == begun;
        final Map<Long, Long> until = target;
        // Do not return the start of the first batch, which Spark would record as its end, nor the start of a batch
        // with a target, after which Spark would end the query.
        Offset meanwhile = isFirst || until != null ? null : start;
        return (Offset) patiently(meanwhile, new Question() {
            public Object ask() {
                Map<Long, Long> found = planner().next(from, until, most);
                if (found.equals(from.positions) && !isFirst) {
                    return from;
                }
                return new Cut(name, found, planner().made(found), isFirst ? from.positions : null);
            }
        });
    }

    /** Returns the parts of a batch. Uses the start that the end of batch 0 records: by now, "latest" is elsewhere. */
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        final Cut to = (Cut) end;
        final Map<Long, Long> from = to.first == null ? ((Cut) start).positions : to.first;
        Object parts = patiently(null, new Question() {
            public Object ask() {
                planner().check(to);
                return planner().parts(from, to.positions);
            }
        });
        List<InputPartition> found = new ArrayList<InputPartition>();
        for (Part part : (Collection<Part>) parts) {
            if (part.start < part.end) {
                found.add(part);
            }
        }
        return (InputPartition[]) found.toArray(new InputPartition[0]);
    }

    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(config(), name);
    }

    /** Returns the name of the source for Spark's progress. */
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

    /** A request to Pravega. */
    interface Question {
        Object ask();
    }

    /** Repeats a request until Pravega responds or the patience is over. Returns ``meanwhile``, if any, instead. */
    private Object patiently(Offset meanwhile, Question question) {
        while (true) {
            try {
                Object answer = question.ask();
                isAway = false;
                return answer;
            } catch (AwayException error) {
                if (!isAway) {
                    isAway = true;
                    awaySinceNs = System.nanoTime();
                }
                if (System.nanoTime() - awaySinceNs > patienceMs * NS_PER_MS) {
                    throw error;
                }
                LOG.warn("No batch is planned for now. {}", error.getMessage());
            }
            if (meanwhile != null) {
                return meanwhile;
            }
            pause();
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException error) { // by Spark, which stops the query and knows this kind of error
            Thread.currentThread().interrupt();
            throw new UncheckedIOException(new InterruptedIOException("interrupted while Pravega was away"));
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

    synchronized StreamClient client() {
        if (client == null) {
            client = new StreamClient(config(), name, patienceMs);
            planner = new Planner(client, options.get("accept_lost"));
        }
        return client;
    }

    synchronized Planner planner() {
        client();
        return planner;
    }
}
