import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A group member that writes "PARTITION OFFSET" of each record that it reads to a file, and then
 * commits. Arguments: bootstrap servers, topic, group, its protocol, the file. Ends when its
 * standard input does.
 */
public final class GroupReader {
    private static volatile boolean ends;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[2]);
        settings.put("group.protocol", arguments[3]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                error.printStackTrace();
            }
            ends = true;
        });
        input.setDaemon(true);
        input.start();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes);
                PrintWriter out = new PrintWriter(Files.newBufferedWriter(
                    Path.of(arguments[4]), StandardOpenOption.CREATE, StandardOpenOption.APPEND))) {
            consumer.subscribe(List.of(arguments[1]));
            boolean isCommitted = true;
            while (!ends) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty() && isCommitted) {
                    continue;
                }
                isCommitted = false;
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    out.println(record.partition() + " " + record.offset());
                }
                out.flush();
                try {
                    consumer.commitSync();
                    isCommitted = true;
                } catch (CommitFailedException | RebalanceInProgressException
                        | TimeoutException error) {
                    // The next poll returns this member's new assignment, and it commits again.
                    System.err.println("commit: " + error);
                }
            }
        }
    }
}
