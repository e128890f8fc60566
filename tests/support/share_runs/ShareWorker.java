import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Members of share groups until its standard input ends: what share_worker.py is, by Kafka's own
 *  client, with the same acknowledgements and the same log. */
public class ShareWorker implements Runnable {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration COMMIT = Duration.ofSeconds(10);
    private static volatile boolean stopping = false;

    private final Map<String, Object> config = new HashMap<>();
    private final String topic;
    private final String name;
    private final boolean explicit;
    private final Writer log;

    private ShareWorker(String[] arguments, String group, String mode, Writer log) {
        config.put("bootstrap.servers", arguments[0]);
        config.put("group.id", group);
        config.put("share.acknowledgement.mode", mode);
        config.put("max.poll.records", "50");
        config.put("key.deserializer", StringDeserializer.class);
        config.put("value.deserializer", StringDeserializer.class);
        topic = arguments[1];
        name = arguments[3] + "-" + group;
        explicit = mode.equals("explicit");
        this.log = log;
        write(List.of(line("start", "of " + group)));
    }

    /** servers topic log name group:mode ... */
    public static void main(String[] arguments) throws Exception {
        Writer log = new FileWriter(arguments[2], true);
        List<Thread> threads = new ArrayList<>();
        for (int index = 4; index < arguments.length; index++) {
            String[] group = arguments[index].split(":");
            Thread thread = new Thread(new ShareWorker(arguments, group[0], group[1], log));
            thread.setUncaughtExceptionHandler((failed, error) -> {
                error.printStackTrace();
                Runtime.getRuntime().halt(1);
            });
            thread.start();
            threads.add(thread);
        }
        while (System.in.read() >= 0) {
            // Whoever started it says nothing.
        }
        stopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    @Override
    public void run() {
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(config)) {
            if (!explicit) {
                consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                    List<String> lines = new ArrayList<>();
                    offsets.forEach((partition, each) -> each.forEach(offset ->
                        lines.add(answered(partition.partition(), offset, error))));
                    write(lines);
                });
            }
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            while (!stopping) {
                acceptAll(records);
                records.clear();
                consumer.poll(POLL).forEach(records::add);
                List<String> lines = new ArrayList<>();
                for (ConsumerRecord<String, String> each : records) {
                    String detail = each.deliveryCount().get() + " " + each.value();
                    lines.add(line("got", place(each) + " " + detail));
                }
                write(lines);
                if (explicit && !records.isEmpty()) {
                    acknowledge(consumer, records);
                }
            }
            acceptAll(records);
        }
    }

    /** The next poll, or the close, accepts them. */
    private void acceptAll(List<ConsumerRecord<String, String>> records) {
        List<String> lines = new ArrayList<>();
        if (!explicit) {
            records.forEach(each -> lines.add(line("sent", place(each) + " ACCEPT")));
        }
        write(lines);
    }

    private void acknowledge(
        KafkaShareConsumer<String, String> consumer, List<ConsumerRecord<String, String>> records
    ) {
        List<String> lines = new ArrayList<>();
        Map<Integer, List<Long>> offsets = new HashMap<>();
        boolean isHeld = false;
        for (ConsumerRecord<String, String> each : records) {
            int number = Integer.parseInt(each.value());
            isHeld |= number % 199 == 0 && each.deliveryCount().get() == 1;
        }
        if (isHeld) {
            hold();
        }
        for (ConsumerRecord<String, String> each : records) {
            int number = Integer.parseInt(each.value());
            AcknowledgeType type = type(number, each.deliveryCount().get());
            consumer.acknowledge(each, type);
            lines.add(line("sent", place(each) + " " + type.name()));
            offsets.computeIfAbsent(each.partition(), key -> new ArrayList<>()).add(each.offset());
        }
        write(lines);
        Map<TopicIdPartition, Optional<KafkaException>> answers = consumer.commitSync(COMMIT);
        lines.clear();
        answers.forEach((partition, error) ->
            offsets.getOrDefault(partition.partition(), List.of()).forEach(offset ->
                lines.add(answered(partition.partition(), offset, error.orElse(null)))));
        write(lines);
    }

    private static AcknowledgeType type(int number, int count) {
        if (number % 23 == 0) {
            return AcknowledgeType.RELEASE;
        }
        if (number % 11 == 0) {
            return count == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.REJECT;
        }
        return number % 7 == 0 && count == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
    }

    /** Longer than the locks last. */
    private static void hold() {
        try {
            Thread.sleep(1500);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String place(ConsumerRecord<String, String> record) {
        return record.partition() + " " + record.offset();
    }

    private String answered(int partition, long offset, Exception error) {
        String outcome = error == null ? "ok" : error.getClass().getSimpleName();
        return line("answered", partition + " " + offset + " " + outcome);
    }

    private String line(String kind, String detail) {
        return kind + " " + name + " " + System.nanoTime() + " " + detail + "\n";
    }

    /** Whole lines are with the kernel when it returns, whatever becomes of this process. */
    private void write(List<String> lines) {
        if (lines.isEmpty()) {
            return;
        }
        synchronized (log) {
            try {
                log.write(String.join("", lines));
                log.flush();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
