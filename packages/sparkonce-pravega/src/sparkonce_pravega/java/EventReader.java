package sparkonce.pravega;

import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.stream.TruncatedDataException;
import java.nio.ByteBuffer;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;

/** Reads the events of a part. */
public class EventReader implements PartitionReader {
    private final String name;
    private final Part part;
    private final SegmentIterator events;
    private GenericInternalRow row;

    EventReader(String name, Part part, SegmentIterator events) {
        this.name = name;
        this.part = part;
        this.events = events;
    }

    public boolean next() {
        long offset = events.getOffset();
        if (!events.hasNext()) {
            if (offset != part.end) {
                throw new IllegalStateException("Segment " + part.segment + " of '" + name + "' has no end of an event at "
                    + part.end + ", where one was: it is another stream. Next: Start the job with a new checkpoint.");
            }
            return false;
        }
        ByteBuffer read;
        try {
            read = (ByteBuffer) events.next();
        } catch (TruncatedDataException error) {
            throw new IllegalStateException("Segment " + part.segment + " of '" + name + "' was truncated at " + offset
                + " or behind it, while this query read it. Next: Start it again: it then tells what is gone.", error);
        }
        byte[] value = new byte[read.remaining()];
        read.get(value);
        Object[] columns = new Object[] {value, Long.valueOf(part.segment), Long.valueOf(offset)};
        row = new GenericInternalRow(columns);
        return true;
    }

    public Object get() {
        return row;
    }

    public void close() {
        events.close();
    }
}
