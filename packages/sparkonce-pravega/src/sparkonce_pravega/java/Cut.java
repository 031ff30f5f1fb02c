package sparkonce.pravega;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * A stream cut in the form in which Spark stores it: the offset in each segment.
 *
 * It includes the creation time of one of its segments, which distinguishes the stream from a later one with the same
 * name. The end of batch 0 also includes the start of that batch.
 */
public class Cut extends Offset {
    private static final ObjectMapper JSON = new ObjectMapper();
    final String stream;
    final Map<Long, Long> positions;
    final Map<Long, Long> made;
    final Map<Long, Long> first;

    Cut(String stream, Map<Long, Long> positions, Map<Long, Long> made, Map<Long, Long> first) {
        this.stream = stream;
        this.positions = positions;
        this.made = made;
        this.first = first;
    }

    static Cut parse(String json) {
        try {
            JsonNode read = JSON.readTree(json);
            Map<Long, Long> first = read.has("first") ? numbers(read.get("first")) : null;
            return new Cut(read.get("stream").asText(), numbers(read.get("cut")), numbers(read.get("made")), first);
        } catch (IOException error) {
            throw unreadable(json, error);
        } catch (RuntimeException error) {
            throw unreadable(json, error);
        }
    }

    private static IllegalStateException unreadable(String json, Exception error) {
        return new IllegalStateException("The checkpoint's offset " + json + " is no cut of a Pravega stream. Next: Use "
            + "the source that has written the checkpoint, or a new checkpoint.", error);
    }

    private static Map<Long, Long> numbers(JsonNode node) {
        Map<Long, Long> found = new TreeMap<Long, Long>();
        Iterator names = node.fieldNames();
        while (names.hasNext()) {
            String name = (String) names.next();
            found.put(Long.valueOf(name), node.get(name).asLong());
        }
        return found;
    }

    public String json() {
        return "{\"stream\":\"" + stream + "\",\"cut\":" + text(positions) + ",\"made\":" + text(made)
            + (first == null ? "" : ",\"first\":" + text(first)) + "}";
    }

    private static String text(Map<Long, Long> positions) {
        StringBuilder text = new StringBuilder();
        for (Map.Entry one : new TreeMap<Long, Long>(positions).entrySet()) {
            text.append(text.length() == 0 ? "{" : ",");
            text.append("\"").append(one.getKey()).append("\":").append(one.getValue());
        }
        return text.append(text.length() == 0 ? "{}" : "}").toString();
    }
}
