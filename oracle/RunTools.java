import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs several of Kafka's command-line tools one after the other: starting a JVM takes longer than
 * any of them. Arguments are tool classes with their own arguments, separated by "---". Without
 * arguments each line of the standard input is a command, with tabs between its words. The output of
 * each command is followed by a line "=== <exit status>".
 */
public final class RunTools {
    private static final PrintStream OUTPUT = System.out;
    private static Integer status;

    private static final class Ended extends RuntimeException {
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((exitStatus, message) -> {
            if (status == null) {
                status = exitStatus;
                // Some tools catch what follows, report it, and exit once more.
                printTo(new PrintStream(OutputStream.nullOutputStream()));
            }
            throw new Ended();
        });
        if (arguments.length == 0) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            System.setIn(InputStream.nullInputStream());
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                run(List.of(line.split("\t", -1)));
            }
            return;
        }
        List<String> command = new ArrayList<>();
        for (String argument : arguments) {
            if (argument.equals("---")) {
                run(command);
                command.clear();
            } else {
                command.add(argument);
            }
        }
        run(command);
    }

    private static void run(List<String> command) throws Exception {
        status = null;
        printTo(OUTPUT);
        try {
            String[] rest = command.subList(1, command.size()).toArray(new String[0]);
            Class.forName(command.get(0)).getMethod("main", String[].class).invoke(null, (Object) rest);
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Ended)) {
                error.getCause().printStackTrace(OUTPUT);
                status = -1;
            }
        }
        OUTPUT.println("\n=== " + (status == null ? 0 : status));
        OUTPUT.flush();
    }

    private static void printTo(PrintStream stream) {
        System.setOut(stream);
        System.setErr(stream);
    }
}
