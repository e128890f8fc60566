import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Kafka's own client: commits, aborts, offsets in a transaction, nothing in one, and a zombie.
 *  Prints what a read_committed consumer sees, and what offset is committed. */
public class TransactionalClient {
    private static final TopicPartition PARTITION = new TopicPartition("java", 0);

    public static void main(String[] arguments) {
        String servers = arguments[0];
        KafkaProducer<String, String> producer = producer(servers);
        producer.initTransactions();
        for (int number = 0; number < 6; number++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("java", 0, null, "value" + number));
            if (number == 3) {
                producer.sendOffsetsToTransaction(
                    Map.of(PARTITION, new OffsetAndMetadata(3)), new ConsumerGroupMetadata("java"));
            }
            if (number % 2 == 1) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        producer.beginTransaction();
        producer.abortTransaction();
        producer.beginTransaction();
        producer.commitTransaction();

        producer.beginTransaction();
        producer.send(new ProducerRecord<>("java", 0, null, "zombie"));
        producer.flush();
        KafkaProducer<String, String> successor = producer(servers);
        successor.initTransactions();
        try {
            producer.commitTransaction();
            System.out.println("zombie committed");
        } catch (ProducerFencedException fenced) {
            System.out.println("zombie fenced");
        }
        successor.beginTransaction();
        successor.send(new ProducerRecord<>("java", 0, null, "last"));
        successor.commitTransaction();
        read(servers);
        System.exit(0);
    }

    private static KafkaProducer<String, String> producer(String servers) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("transactional.id", "java");
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private static void read(String servers) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("group.id", "java");
        properties.put("isolation.level", "read_committed");
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
        System.out.println("offset " + consumer.committed(Set.of(PARTITION)).get(PARTITION).offset());
        consumer.assign(List.of(PARTITION));
        consumer.seekToBeginning(List.of(PARTITION));
        List<String> values = new ArrayList<>();
        while (!values.contains("last")) {
            for (ConsumerRecord<String, String> each : consumer.poll(java.time.Duration.ofSeconds(1))) {
                values.add(each.value());
            }
        }
        System.out.println("values " + String.join(" ", values));
    }
}
