import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of transactions: "send TOPIC LOCAL CHECKED BODY ..." begins one for each body. LOCAL is its end (commit,
 * rollback, unknown), CHECKED the answer when a broker asks. "answer CHECKED BODY ..." changes it. "asked" tells the
 * number of questions.
 */
public final class Transactions {
    private static final Map<String, LocalTransactionState> CHECKED = new ConcurrentHashMap<>();
    private static final AtomicInteger ASKED = new AtomicInteger();

    private Transactions() {
    }

    private static LocalTransactionState state(String word) {
        switch (word) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        TransactionMQProducer producer = new TransactionMQProducer("transactions");
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(500);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setSendMsgTimeout(20_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object local) {
                return state((String) local);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                ASKED.incrementAndGet();
                return CHECKED.get(new String(message.getBody(), StandardCharsets.UTF_8));
            }
        });
        producer.start();
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            String answer;
            try {
                answer = words[0].equals("asked") ? String.valueOf(ASKED.get())
                    : words[0].equals("answer") ? change(words) : send(producer, words);
            } catch (Exception failed) {
                answer = "failed " + String.valueOf(failed).replace('\n', ' ');
            }
            answers.println(answer);
        }
        System.exit(0);
    }

    private static String change(String[] words) {
        for (int at = 2; at < words.length; at++) {
            CHECKED.put(words[at], state(words[1]));
        }
        return "changed";
    }

    private static String send(TransactionMQProducer producer, String[] words) throws Exception {
        StringBuilder answer = new StringBuilder("sent");
        for (int at = 4; at < words.length; at++) {
            CHECKED.put(words[at], state(words[3]));
            Message message = new Message(words[1], "A", words[at].getBytes(StandardCharsets.UTF_8));
            TransactionSendResult result = producer.sendMessageInTransaction(message, words[2]);
            answer.append(' ').append(result.getSendStatus()).append('/').append(result.getTransactionId());
        }
        return answer.toString();
    }
}
