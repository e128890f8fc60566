import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the records of each key of a topic in a store that is in memory alone, so that a start
 * restores it, and writes the count to another topic, exactly once. Arguments: bootstrap servers of
 * the cluster; those of both consumers; application id, input and output; a folder. Ends when its
 * standard input does.
 */
public final class StreamsRestore {
    private static final class Count implements FixedKeyProcessor<String, String, String> {
        private FixedKeyProcessorContext<String, String> context;
        private KeyValueStore<String, String> counts;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            this.context = context;
            counts = context.getStateStore("counts");
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            String before = counts.get(record.key());
            long count = before == null ? 1 : Long.parseLong(before.strip()) + 1;
            // Long values fill segments of the changelog.
            counts.put(record.key(), String.format("%-1000d", count));
            context.forward(record.withValue(Long.toString(count)));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Serde<String> text = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
            Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("counts"), text, text));
        builder.stream(arguments[3], Consumed.with(text, text))
            .processValues(Count::new, "counts")
            .to(arguments[4], Produced.with(text, text));

        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.mainConsumerPrefix("bootstrap.servers"), arguments[1]);
        settings.put(StreamsConfig.restoreConsumerPrefix("bootstrap.servers"), arguments[1]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[2]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[5]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put("auto.offset.reset", "earliest");
        // The end leaves a member behind, for which the next start waits.
        settings.put("session.timeout.ms", 6000);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        System.in.transferTo(System.out);
        streams.close();
    }
}
