import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Reads "input", counts the records of each key, and writes "VALUE COUNT" to "output", exactly once,
 * in a cluster inside this process. Arguments: bootstrap servers, a folder for checkpoints. Ends,
 * with a savepoint, when its standard input does.
 */
public final class FlinkCount {
    private static final TypeInformation<Tuple2<String, String>> PAIR =
        Types.TUPLE(Types.STRING, Types.STRING);

    private static final class Read
            implements KafkaRecordDeserializationSchema<Tuple2<String, String>> {
        @Override
        public void deserialize(
                ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, String>> output) {
            output.collect(Tuple2.of(
                new String(record.key(), StandardCharsets.UTF_8),
                new String(record.value(), StandardCharsets.UTF_8)));
        }

        @Override
        public TypeInformation<Tuple2<String, String>> getProducedType() {
            return PAIR;
        }
    }

    private static final class Write
            implements KafkaRecordSerializationSchema<Tuple2<String, String>> {
        @Override
        public ProducerRecord<byte[], byte[]> serialize(
                Tuple2<String, String> pair, KafkaSinkContext context, Long timestamp) {
            return new ProducerRecord<>(
                "output",
                pair.f0.getBytes(StandardCharsets.UTF_8),
                pair.f1.getBytes(StandardCharsets.UTF_8));
        }
    }

    private static final class Count
            extends KeyedProcessFunction<String, Tuple2<String, String>, Tuple2<String, String>> {
        private transient ValueState<Long> counts;

        @Override
        public void open(OpenContext context) {
            counts = getRuntimeContext().getState(new ValueStateDescriptor<>("counts", Types.LONG));
        }

        @Override
        public void processElement(
                Tuple2<String, String> pair, Context context,
                Collector<Tuple2<String, String>> output) throws Exception {
            Long before = counts.value();
            long count = before == null ? 1 : before + 1;
            counts.update(count);
            output.collect(Tuple2.of(pair.f0, pair.f1 + " " + count));
        }
    }

    public static void main(String[] arguments) throws Exception {
        String folder = Path.of(arguments[1]).toUri().toString();
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "300 ms");
        settings.setString("execution.checkpointing.dir", folder);
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<Tuple2<String, String>> source = KafkaSource.<Tuple2<String, String>>builder()
            .setBootstrapServers(arguments[0])
            .setTopics("input")
            .setGroupId("counter")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Read())
            .build();
        KafkaSink<Tuple2<String, String>> sink = KafkaSink.<Tuple2<String, String>>builder()
            .setBootstrapServers(arguments[0])
            .setRecordSerializer(new Write())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("counter")
            .setProperty("transaction.timeout.ms", "600000")
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "input")
            .keyBy(pair -> pair.f0, Types.STRING)
            .process(new Count(), PAIR)
            .sinkTo(sink);
        JobClient job = environment.executeAsync();
        System.in.transferTo(System.out);
        job.stopWithSavepoint(true, folder, SavepointFormatType.CANONICAL).get();
        System.exit(0);
    }
}
