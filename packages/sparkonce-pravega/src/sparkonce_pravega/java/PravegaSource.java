package sparkonce.pravega;

import java.util.Collections;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The format, and the methods that Spark calls before it reads. */
public class PravegaSource implements TableProvider, DataSourceRegister {
    static final StructType SCHEMA = StructType.fromDDL("value binary, segment bigint, offset bigint");

    public String shortName() {
        return "pravega_stream";
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SCHEMA;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map options) {
        return new StreamTable();
    }

    public static class StreamTable implements SupportsRead {
        public String name() {
            return "pravega";
        }

        public StructType schema() {
            return SCHEMA;
        }

        public Set capabilities() {
            return Collections.singleton(TableCapability.MICRO_BATCH_READ);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new StreamScan(options);
        }
    }

    public static class StreamScan implements ScanBuilder, Scan {
        private final CaseInsensitiveStringMap options;

        StreamScan(CaseInsensitiveStringMap options) {
            this.options = options;
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return SCHEMA;
        }

        public String description() {
            return "pravega: " + options.get("stream");
        }

        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return new CutStream(options);
        }
    }
}
