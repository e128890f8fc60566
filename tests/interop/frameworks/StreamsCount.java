import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Reads "input" through a repartition topic, counts the records of each key in a store, and writes
 * "VALUE COUNT" to "output", exactly once. Arguments: bootstrap servers, a folder for state. Ends
 * when its standard input does.
 */
public final class StreamsCount {
    private static final class Count implements FixedKeyProcessor<String, String, String> {
        private FixedKeyProcessorContext<String, String> context;
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            this.context = context;
            counts = context.getStateStore("counts");
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            Long before = counts.get(record.key());
            long count = before == null ? 1 : before + 1;
            counts.put(record.key(), count);
            context.forward(record.withValue(record.value() + " " + count));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("counts"), text, Serdes.Long()));
        builder.stream("input", Consumed.with(text, text))
            .repartition(Repartitioned.with(text, text).withNumberOfPartitions(2))
            .processValues(Count::new, "counts")
            .to("output", Produced.with(text, text));

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "counter");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        // A killed process leaves a member behind, for which the group waits.
        settings.put("session.timeout.ms", 6000);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(
            error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        streams.start();
        System.in.transferTo(System.out);
        streams.close();
    }
}
