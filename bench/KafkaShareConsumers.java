import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a share group, Kafka's own client with its defaults, each in a thread. They take the
 * records of a topic together, in the implicit mode. Arguments: address, topic, group, records,
 * members.
 *
 * <p>The time runs from the first record that any of them gets to the last one that they need.
 */
public final class KafkaShareConsumers {
    private record Run(long began, long ended, long bytes) {}

    public static void main(String[] args) throws Exception {
        int members = Integer.parseInt(args[4]);
        AtomicLong left = new AtomicLong(Long.parseLong(args[3]));
        ExecutorService threads = Executors.newFixedThreadPool(members);
        List<Future<Run>> runs = new ArrayList<>();
        for (int i = 0; i < members; i++) {
            runs.add(threads.submit(() -> take(args[0], args[1], args[2], left)));
        }
        long began = Long.MAX_VALUE;
        long ended = Long.MIN_VALUE;
        long bytes = 0;
        for (Future<Run> each : runs) {
            Run run = each.get();
            began = Math.min(began, run.began());
            ended = Math.max(ended, run.ended());
            bytes += run.bytes();
        }
        threads.shutdown();
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        System.out.printf(
            "{\"seconds\": %.6f, \"bytes\": %d, \"repeated\": %d, \"client_cpu_s\": %.3f}%n",
            (ended - began) / 1e9, bytes, -left.get(), system.getProcessCpuTime() / 1e9);
    }

    private static Run take(String address, String topic, String group, AtomicLong left) {
        Map<String, Object> config = Map.of("bootstrap.servers", address, "group.id", group);
        ByteArrayDeserializer bytesOf = new ByteArrayDeserializer();
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(config, bytesOf, bytesOf)) {
            consumer.subscribe(List.of(topic));
            long began = Long.MAX_VALUE;
            long ended = Long.MIN_VALUE;
            long bytes = 0;
            while (left.get() > 0) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(500));
                if (polled.isEmpty()) {
                    continue;
                }
                ended = System.nanoTime();
                began = Math.min(began, ended);
                for (ConsumerRecord<byte[], byte[]> each : polled) {
                    bytes += each.value().length;
                }
                left.addAndGet(-polled.count());
            }
            return new Run(began, ended, bytes);
        }
    }
}
