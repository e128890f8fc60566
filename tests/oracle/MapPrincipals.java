import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Prints the users that Kafka's SslPrincipalMapper makes of the names of certificates.
 *
 * <p>Each line of stdin has the rules, a tab, and a name; the answer is a line with the user, "none" if no rule matches,
 * or "invalid" for the rules.
 */
public final class MapPrincipals {
    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t", 2);
            System.out.println(answer(parts[0], parts[1]));
        }
    }

    private static String answer(String rules, String name) {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(rules);
        } catch (RuntimeException error) {
            return "invalid";
        }
        try {
            return "user " + mapper.getName(name);
        } catch (Exception error) {
            return "none";
        }
    }
}
