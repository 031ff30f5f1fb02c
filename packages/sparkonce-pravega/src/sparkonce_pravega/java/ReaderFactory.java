package sparkonce.pravega;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** Opens parts in the executors. */
public class ReaderFactory implements PartitionReaderFactory {
    private static final Map<List<Object>, BatchClientFactory> CLIENTS = new HashMap<List<Object>, BatchClientFactory>();
    private final ClientConfig config;
    private final String name;

    ReaderFactory(ClientConfig config, String name) {
        this.config = config;
        this.name = name;
    }

    public PartitionReader createReader(InputPartition partition) {
        Part part = (Part) partition;
        Stream stream = Stream.of(name);
        BatchClientFactory client = client(config, stream.getScope());
        return new EventReader(
            name, part, client.readSegment(StreamClient.range(stream, part), new ByteBufferSerializer()));
    }

    /** Returns this process's client, because opening one takes longer than reading a small batch. */
    private static BatchClientFactory client(ClientConfig config, String scope) {
        synchronized (CLIENTS) {
            Object[] parts = new Object[] {config, scope};
            List<Object> key = Arrays.asList(parts);
            if (!CLIENTS.containsKey(key)) {
                CLIENTS.put(key, BatchClientFactory.withScope(scope, config));
            }
            return (BatchClientFactory) CLIENTS.get(key);
        }
    }
}
