import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.MemberState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;

/**
 * One member of a Java group, told what to do by lines on standard input.
 *
 * Arguments are name=value for every setter of DLedgerConfig (selfId, peers, group, storeBaseDir, ...).
 * Commands: "status" prints one line, "stop" ends in good order. The end of the input ends the process
 * at once, so that no member outlives the program that started it.
 */
public final class Member {
    private Member() {
    }

    public static void main(String[] arguments) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            set(config, argument.substring(0, at), argument.substring(at + 1));
        }
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        System.out.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.equals("status")) {
                System.out.println(status(server));
            } else if (line.equals("stop")) {
                server.shutdown();
                System.out.println("stopped");
                Runtime.getRuntime().halt(0);
            }
        }
        Runtime.getRuntime().halt(3);
    }

    private static String status(DLedgerServer server) throws Exception {
        MemberState state = server.getMemberState();
        Object store = call(server, "getDLedgerStore", "getdLedgerStore");
        return "role=" + state.getRole() + " term=" + state.currTerm() + " leader=" + state.getLeaderId()
            + " begin=" + call(store, "getLedgerBeginIndex", "getLedgerBeforeBeginIndex")
            + " end=" + call(store, "getLedgerEndIndex")
            + " committed=" + (has(store, "getCommittedIndex") ? call(store, "getCommittedIndex")
                : call(state, "getCommittedIndex"));
    }

    private static boolean has(Object target, String name) {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == 0) {
                return true;
            }
        }
        return false;
    }

    /** Calls the first of these that there is: versions name them differently. */
    private static Object call(Object target, String... names) throws Exception {
        for (String name : names) {
            if (has(target, name)) {
                return target.getClass().getMethod(name).invoke(target);
            }
        }
        throw new IllegalArgumentException(target.getClass() + " has no " + names[0]);
    }

    private static void set(DLedgerConfig config, String name, String value) throws Exception {
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : DLedgerConfig.class.getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                method.invoke(config, convert(method.getParameterTypes()[0], value));
                return;
            }
        }
        throw new IllegalArgumentException("DLedgerConfig has no " + setter);
    }

    private static Object convert(Class<?> type, String value) {
        if (type == int.class) {
            return Integer.parseInt(value);
        }
        if (type == long.class) {
            return Long.parseLong(value);
        }
        if (type == float.class) {
            return Float.parseFloat(value);
        }
        if (type == boolean.class) {
            return Boolean.parseBoolean(value);
        }
        return value;
    }
}
