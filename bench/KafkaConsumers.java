import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Consumers of Kafka's own client with its defaults, each in a thread, read the same records of
 * partition 0 from its first offset. Arguments: address, topic, records, consumers.
 *
 * <p>They begin together, once all know the topic. The time runs from the first record that any of
 * them gets to the last record that any of them needs.
 */
public final class KafkaConsumers {
    private record Run(long began, long ended, long bytes) {}

    public static void main(String[] args) throws Exception {
        long records = Long.parseLong(args[2]);
        int consumers = Integer.parseInt(args[3]);
        CountDownLatch ready = new CountDownLatch(consumers);
        ExecutorService threads = Executors.newFixedThreadPool(consumers);
        List<Future<Run>> runs = new ArrayList<>();
        for (int i = 0; i < consumers; i++) {
            runs.add(threads.submit(() -> consume(args[0], args[1], records, ready)));
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
            "{\"seconds\": %.6f, \"bytes\": %d, \"client_cpu_s\": %.3f}%n",
            (ended - began) / 1e9, bytes, system.getProcessCpuTime() / 1e9);
    }

    private static Run consume(String address, String topic, long records, CountDownLatch ready)
            throws InterruptedException {
        Map<String, Object> config = Map.of("bootstrap.servers", address);
        ByteArrayDeserializer bytesOf = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, bytesOf, bytesOf)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.partitionsFor(topic);
            ready.countDown();
            ready.await();
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long began = 0;
            long count = 0;
            long bytes = 0;
            while (count < records) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofSeconds(30));
                if (polled.isEmpty()) {
                    throw new IllegalStateException("no records came: count=" + count);
                }
                if (count == 0) {
                    began = System.nanoTime();
                }
                for (ConsumerRecord<byte[], byte[]> each : polled) {
                    bytes += each.value().length;
                }
                count += polled.count();
            }
            return new Run(began, System.nanoTime(), bytes);
        }
    }
}
