import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestOptions;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.KafkaSinkBuilder;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/**
 * The Flink counterpart of the benchmark's Spark queries: copies a topic to another one, or sums it by window.
 *
 * <p>Reads the names of target topics from standard input, one per line, and runs once for each. After each run, prints
 * one line of JSON: the number of rows, the time at which the first row was read, and the seconds from then until a
 * read_committed reader sees all of them.
 */
public class Pipeline {
    static final AtomicLong FIRST = new AtomicLong();
    static final byte[] NO_KEY = {};
    static final long VISIBLE_WITHIN_MS = 30_000;
    static final BufferedReader TARGETS = new BufferedReader(new InputStreamReader(System.in));

    public static void main(String[] arguments) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String argument : arguments) {
            given.put(argument.substring(2, argument.indexOf('=')), argument.substring(argument.indexOf('=') + 1));
        }
        try {
            for (String target; (target = TARGETS.readLine()) != null; ) {
                System.out.println(run(given, target));
            }
            System.exit(0);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // other threads would keep the JVM alive
        }
    }

    static String run(Map<String, String> given, String target) throws Exception {
        FIRST.set(0);
        Path checkpoints = Files.createTempDirectory(Path.of(given.get("folder")), "flink");
        Configuration conf = new Configuration();
        conf.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
        conf.set(TaskManagerOptions.NUM_TASK_SLOTS, Integer.parseInt(given.get("cores")));
        conf.set(RestOptions.BIND_PORT, "0");
        conf.set(RestartStrategyOptions.RESTART_STRATEGY, "disable");
        int cores = Integer.parseInt(given.get("cores"));
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(cores, conf);
        job.setParallelism(cores);
        job.getConfig().enableObjectReuse(); // otherwise, every operator copies every row
        job.enableCheckpointing(Long.parseLong(given.get("checkpoint-ms")));
        boolean windows = given.get("shape").equals("windows");
        DataStream<Tuple2<byte[], byte[]>> rows = job.fromSource(source(given), watermarks(windows), "source");
        (windows ? sums(rows) : rows).sinkTo(sink(given, target));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", given.get("bootstrap")))) {
            long count = ends(admin, given.get("source"), IsolationLevel.READ_UNCOMMITTED);
            AtomicLong visible = new AtomicLong();
            Thread observer = new Thread(() -> {
                try {
                    while (visible.get() == 0) {
                        if (!windows && ends(admin, target, IsolationLevel.READ_COMMITTED) >= count) {
                            visible.set(System.nanoTime());
                        }
                        Thread.sleep(50);
                    }
                } catch (Exception error) {
                    System.err.println("The observer ended: " + error);
                }
            });
            observer.start();
            job.execute("pipeline");
            long ended = System.nanoTime();
            if (windows) {
                visible.set(ended); // the expected number of sums is unknown
            }
            observer.join(VISIBLE_WITHIN_MS);
            if (visible.get() == 0) {
                throw new IllegalStateException("Not all rows became visible.");
            }
            double seconds = (visible.get() - FIRST.get()) / 1e9;
            double began = System.currentTimeMillis() / 1e3 - (System.nanoTime() - FIRST.get()) / 1e9;
            return String.format(
                    Locale.ROOT, "{\"rows\": %d, \"began\": %.3f, \"seconds\": %.3f}", count, began, seconds);
        }
    }

    static long ends(Admin admin, String topic, IsolationLevel isolation) throws Exception {
        Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
        int partitions = admin.describeTopics(java.util.List.of(topic)).allTopicNames().get().get(topic).partitions().size();
        for (int number = 0; number < partitions; number++) {
            asked.put(new TopicPartition(topic, number), OffsetSpec.latest());
        }
        long sum = 0;
        for (var found : admin.listOffsets(asked, new ListOffsetsOptions(isolation)).all().get().values()) {
            sum += found.offset();
        }
        return sum;
    }

    static long number(byte[] value) {
        long number = 0;
        for (int place = 0; place < 10; place++) {
            number = number * 10 + (value[place] - '0');
        }
        return number;
    }

    static WatermarkStrategy<Tuple2<byte[], byte[]>> watermarks(boolean windows) {
        if (!windows) {
            return WatermarkStrategy.noWatermarks();
        }
        return WatermarkStrategy.<Tuple2<byte[], byte[]>>forBoundedOutOfOrderness(Duration.ofSeconds(1))
                .withTimestampAssigner((row, before) -> number(row.f1));
    }

    static TypeInformation<Tuple2<byte[], byte[]>> rows() {
        return Types.TUPLE(Types.PRIMITIVE_ARRAY(Types.BYTE), Types.PRIMITIVE_ARRAY(Types.BYTE));
    }

    static KafkaSource<Tuple2<byte[], byte[]>> source(Map<String, String> given) {
        return KafkaSource.<Tuple2<byte[], byte[]>>builder()
                .setBootstrapServers(given.get("bootstrap"))
                .setTopics(given.get("source"))
                .setGroupId("pipeline")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setDeserializer(new Read(!given.get("shape").equals("values")))
                .build();
    }

    static KafkaSink<Tuple2<byte[], byte[]>> sink(Map<String, String> given, String target) {
        KafkaSinkBuilder<Tuple2<byte[], byte[]>> builder = KafkaSink.<Tuple2<byte[], byte[]>>builder()
                .setBootstrapServers(given.get("bootstrap"))
                .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<byte[], byte[]>>builder()
                        .setTopic(target)
                        .setKeySerializationSchema(new Key())
                        .setValueSerializationSchema(new Value())
                        .build())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(target)
                .setProperty("transaction.timeout.ms", "600000"); // the broker allows less than Flink's hour
        if (!given.get("compression").isEmpty()) {
            builder.setProperty("compression.type", given.get("compression"));
        }
        return builder.build();
    }

    static DataStream<Tuple2<byte[], byte[]>> sums(DataStream<Tuple2<byte[], byte[]>> rows) {
        return rows.map(row -> Tuple2.of(new String(row.f0, StandardCharsets.US_ASCII), number(row.f1)))
                .returns(Types.TUPLE(Types.STRING, Types.LONG))
                .keyBy(row -> row.f0, Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(20)))
                .reduce((one, other) -> Tuple2.of(one.f0, one.f1 + other.f1), new Sum(), rows());
    }

    public static class Sum
            extends ProcessWindowFunction<Tuple2<String, Long>, Tuple2<byte[], byte[]>, String, TimeWindow> {
        @Override
        public void process(
                String key, Context context, Iterable<Tuple2<String, Long>> sums,
                Collector<Tuple2<byte[], byte[]>> out) {
            String text = context.window().getStart() + "," + sums.iterator().next().f1;
            out.collect(Tuple2.of(key.getBytes(StandardCharsets.US_ASCII), text.getBytes(StandardCharsets.US_ASCII)));
        }
    }

    public static class Read implements KafkaRecordDeserializationSchema<Tuple2<byte[], byte[]>> {
        private final boolean keys;

        Read(boolean keys) {
            this.keys = keys;
        }

        @Override
        public void deserialize(
                ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<byte[], byte[]>> out) {
            if (FIRST.getPlain() == 0) {
                FIRST.compareAndSet(0, System.nanoTime());
            }
            out.collect(Tuple2.of(keys ? record.key() : NO_KEY, record.value()));
        }

        @Override
        public TypeInformation<Tuple2<byte[], byte[]>> getProducedType() {
            return rows();
        }
    }

    public static class Key implements SerializationSchema<Tuple2<byte[], byte[]>> {
        @Override
        public byte[] serialize(Tuple2<byte[], byte[]> row) {
            return row.f0.length == 0 ? null : row.f0;
        }
    }

    public static class Value implements SerializationSchema<Tuple2<byte[], byte[]>> {
        @Override
        public byte[] serialize(Tuple2<byte[], byte[]> row) {
            return row.f1;
        }
    }
}
