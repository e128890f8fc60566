import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Prints what Kafka's SimpleAssignor assigns.
 *
 * <p>A line of stdin is a group: the partition counts of topics 1, 2, ... with commas, then for each member its topics
 * with commas, a slash, and its partitions as topic:index with commas. The answer is a line: each member's partitions,
 * with commas, in order, members with spaces between them.
 */
public final class AssignShares {
    private static final long INVERSE_OF_31 = 0xbdef7bdfL;

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(answer(line.split(" ")));
        }
    }

    private static String answer(String[] parts) {
        String[] counts = parts[0].split(",");
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        for (int member = 1; member < parts.length; member++) {
            String[] halves = parts[member].split("/", -1);
            Set<Uuid> topics = new HashSet<>();
            for (String topic : halves[0].split(",")) {
                if (!topic.isEmpty()) topics.add(id(topic, counts));
            }
            Map<Uuid, Set<Integer>> assigned = new HashMap<>();
            for (String partition : halves[1].split(",")) {
                if (partition.isEmpty()) continue;
                String[] names = partition.split(":");
                assigned.computeIfAbsent(id(names[0], counts), key -> new HashSet<>()).add(Integer.parseInt(names[1]));
            }
            subscriptions.add(topics);
            members.put(name(member), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), topics, new Assignment(assigned)));
        }
        SubscriptionType type = subscriptions.size() > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS;
        var assignment = new SimpleAssignor().assign(
            new GroupSpecImpl(members, type, new HashMap<>()),
            new SubscribedTopicDescriber() {
                @Override
                public int numPartitions(Uuid topic) {
                    return Integer.parseInt(counts[(int) number(topic) - 1]);
                }

                @Override
                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }
            });
        StringBuilder answer = new StringBuilder();
        for (String member : members.keySet()) {
            Map<Long, Set<Integer>> ordered = new TreeMap<>();
            var own = assignment.members().get(member);
            if (own != null) {
                own.partitions().forEach((topic, indexes) ->
                    ordered.put(number(topic), new TreeSet<>(indexes)));
            }
            StringBuilder text = new StringBuilder();
            ordered.forEach((topic, indexes) -> indexes.forEach(index ->
                text.append(text.length() > 0 ? "," : "").append(topic).append(":").append(index)));
            answer.append(answer.length() > 0 ? " " : "").append(text.length() > 0 ? text : "-");
        }
        return answer.toString();
    }

    /** An id whose partitions have hashes behind those of the topics before it: tables are in their order. */
    private static Uuid id(String topic, String[] counts) {
        long base = 0;
        for (int before = 1; before < Integer.parseInt(topic); before++) {
            base += Integer.parseInt(counts[before - 1]);
        }
        return new Uuid(Long.parseLong(topic) << 32, (base * INVERSE_OF_31 & 0xffffffffL) ^ Long.parseLong(topic));
    }

    private static long number(Uuid topic) {
        return topic.getMostSignificantBits() >> 32;
    }

    private static String name(int member) {
        return String.format("m%03d", member);
    }
}
