import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.DefaultAfterRollbackProcessor;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import org.springframework.util.backoff.FixedBackOff;

/**
 * A listener that copies each record of "input" to "output", in a transaction that also commits the
 * record's offset. At some records it fails once, after it has sent them, so that there are aborted
 * records. Arguments: bootstrap servers. Ends when its standard input does.
 */
public final class SpringCopy {
    private static final int FAILS_EVERY = 200;

    public static void main(String[] arguments) throws Exception {
        StringDeserializer reads = new StringDeserializer();
        StringSerializer writes = new StringSerializer();
        Map<String, Object> consumer = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", "copier",
            "auto.offset.reset", "earliest",
            // A killed process leaves a member behind, for which the group waits.
            "session.timeout.ms", 6000,
            "isolation.level", "read_committed");
        DefaultKafkaProducerFactory<String, String> producers = new DefaultKafkaProducerFactory<>(
            Map.of("bootstrap.servers", arguments[0]), writes, writes);
        producers.setTransactionIdPrefix("copier-");
        KafkaTemplate<String, String> template = new KafkaTemplate<>(producers);

        ContainerProperties properties = new ContainerProperties("input");
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        Set<String> failed = ConcurrentHashMap.newKeySet();
        properties.setMessageListener((MessageListener<String, String>) record -> {
            var sent = template.send("output", record.partition(), record.key(), record.value());
            if (record.offset() % FAILS_EVERY == 0
                    && failed.add(record.partition() + "-" + record.offset())) {
                sent.join();
                throw new IllegalStateException("fails once offset=" + record.offset());
            }
        });
        ConcurrentMessageListenerContainer<String, String> container =
            new ConcurrentMessageListenerContainer<>(
                new DefaultKafkaConsumerFactory<>(consumer, reads, reads), properties);
        container.setConcurrency(2);
        // By default a record is given up after ten attempts.
        container.setAfterRollbackProcessor(new DefaultAfterRollbackProcessor<>(
            new FixedBackOff(100, FixedBackOff.UNLIMITED_ATTEMPTS)));
        container.start();
        System.in.transferTo(System.out);
        container.stop();
        producers.destroy();
    }
}
