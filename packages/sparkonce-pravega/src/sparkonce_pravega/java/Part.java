package sparkonce.pravega;

import org.apache.spark.sql.connector.read.InputPartition;

/** The events of one segment that a batch reads: those from one offset up to another. */
public class Part implements InputPartition {
    final long segment;
    final long start;
    final long end;

    Part(long segment, long start, long end) {
        this.segment = segment;
        this.start = start;
        this.end = end;
    }
}
