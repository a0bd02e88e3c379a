import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/** Kafka's command-line tools, run in this process: what they print and their exit code. */
final class Tools {
    private static final ByteArrayOutputStream OUTPUT = new ByteArrayOutputStream();

    private static final class Exited extends RuntimeException {
        final int code;

        Exited(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    /** From now on nothing but the tests' own answers goes to the real standard output. */
    static void captureOutput() {
        System.setOut(new PrintStream(OUTPUT, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> { throw new Exited(code); });
        Exit.setHaltProcedure((code, message) -> { throw new Exited(code); });
    }

    static Object run(String name, List<String> arguments) throws Exception {
        OUTPUT.reset();
        PrintStream realError = System.err;
        System.setErr(System.out);
        int code = 0;
        try {
            Class.forName(name)
                .getMethod("main", String[].class)
                .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException error) {
            if (!(error.getCause() instanceof Exited)) {
                throw error;
            }
            code = ((Exited) error.getCause()).code;
        } finally {
            System.setErr(realError);
        }
        return Map.of("code", code, "output", OUTPUT.toString(StandardCharsets.UTF_8));
    }
}
