import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * Prints what java.util.regex makes of patterns.
 *
 * <p>Each line of stdin has a pattern, a replacement and a text, in hexadecimal UTF-8 behind an x, with spaces between
 * them. The answer is a line: "invalid" for the pattern, or whether it matches as a whole, whether it is found, and
 * the text with all matches replaced, in hexadecimal behind an x, or "invalid" for the replacement.
 */
public final class JavaPatterns {
    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ");
            System.out.println(answer(text(parts[0]), text(parts[1]), text(parts[2])));
        }
    }

    private static String answer(String pattern, String replacement, String text) {
        Pattern compiled;
        try {
            compiled = Pattern.compile(pattern);
        } catch (RuntimeException error) {
            return "invalid";
        }
        Matcher matcher = compiled.matcher(text);
        boolean matches = matcher.matches();
        boolean found = matcher.reset().find();
        String replaced;
        try {
            replaced = "x" + HexFormat.of().formatHex(matcher.reset().replaceAll(replacement).getBytes(UTF_8));
        } catch (RuntimeException error) {
            replaced = "invalid";
        }
        return matches + " " + found + " " + replaced;
    }

    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex.substring(1)), UTF_8);
    }
}
