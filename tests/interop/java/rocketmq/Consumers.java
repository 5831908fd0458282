import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's own consumers in each of their ways, told what to do by lines on standard input; one line of answer for
 * each. Words are separated by blanks; the end of the input ends the process.
 *
 * Argument: the name server. Commands:
 * "send TOPIC TAG LEVEL QUEUE BODY...": one message for each body, delayed if the level is above 0, to this queue if it
 * is not below 0 ("sent" and, for each, its offsetMsgId);
 * "push NAME GROUP TOPIC WAY TAGS": a push consumer begins; WAY is "ok", "later" (each message is wanted again, at the
 * first level, twice at most), "popped" (the broker shares out the queues; each message is wanted once again) or
 * "ordered"; TAGS may have blanks in it ("ok", or "refused" and why);
 * "seen NAME COUNT SECONDS": wait until it was given so many (for each, body/tags/times/topic/queue/milliseconds from
 * its birth); they are forgotten then;
 * "stop NAME";
 * "lite TOPIC SINCE COUNT": a pull consumer reads from a time on, 0 is the beginning, until it has so many different
 * ones, commits, and says how far it has committed in all queues together, and the bodies;
 * "view TOPIC OFFSETMSGID": the message's body.
 */
public final class Consumers {
    private static final Map<String, DefaultMQPushConsumer> PUSHED = new HashMap<>();
    private static final Map<String, Queue<String>> SEEN = new HashMap<>();
    private static String nameServer;

    private Consumers() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        // Where a topic is new, its consumers look for its queues every 20 s otherwise.
        System.setProperty("rocketmq.client.rebalance.waitInterval", "500");
        nameServer = arguments[0];
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(500);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        answers.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            String answer;
            try {
                answer = answer(producer, words);
            } catch (Exception failed) {
                answer = "failed " + String.valueOf(failed).replace('\n', ' ');
            }
            answers.println(answer);
        }
        System.exit(0);
    }

    private static String answer(DefaultMQProducer producer, String[] words) throws Exception {
        switch (words[0]) {
            case "send":
                return send(producer, words);
            case "push":
                return push(words);
            case "seen":
                return seen(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "stop":
                PUSHED.remove(words[1]).shutdown();
                return "ok";
            case "lite":
                return lite(words[1], Long.parseLong(words[2]), Integer.parseInt(words[3]));
            case "view":
                return new String(producer.viewMessage(words[1], words[2]).getBody(), StandardCharsets.UTF_8);
            default:
                return "what is " + words[0] + "?";
        }
    }

    private static String send(DefaultMQProducer producer, String[] words) throws Exception {
        StringBuilder answer = new StringBuilder("sent");
        for (int at = 5; at < words.length; at++) {
            Message message = new Message(words[1], words[2], words[at].getBytes(StandardCharsets.UTF_8));
            message.setDelayTimeLevel(Integer.parseInt(words[3]));
            int queue = Integer.parseInt(words[4]);
            SendResult result = queue < 0 ? producer.send(message)
                : producer.send(message, (queues, one, chosen) -> queues.get((Integer) chosen), queue);
            answer.append(' ').append(result.getOffsetMsgId());
        }
        return answer.toString();
    }

    private static String push(String[] words) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(words[2]);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(words[1]);
        consumer.setPollNameServerInterval(500);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(2);
        String tags = String.join(" ", List.of(words).subList(5, words.length));
        Queue<String> into = new ConcurrentLinkedQueue<>();
        if (words[4].equals("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> into.add(shown(message)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> into.add(shown(message)));
                context.setDelayLevelWhenNextConsume(1);
                boolean isLater = words[4].equals("later")
                    || words[4].equals("popped") && messages.get(0).getReconsumeTimes() == 0;
                return isLater ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        if (words[4].equals("popped")) {  // of 5.x only
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        try {
            if (tags.contains(">")) {
                consumer.subscribe(words[3], MessageSelector.bySql(tags));
            } else {
                consumer.subscribe(words[3], tags);
            }
            consumer.start();
        } catch (MQClientException refused) {
            return "refused " + String.valueOf(refused.getMessage()).replace('\n', ' ');
        }
        SEEN.put(words[1], into);
        PUSHED.put(words[1], consumer);
        return "ok";
    }

    private static String shown(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8) + "/" + message.getTags() + "/"
            + message.getReconsumeTimes() + "/" + message.getTopic() + "/" + message.getQueueId() + "/"
            + (System.currentTimeMillis() - message.getBornTimestamp());
    }

    private static String seen(String name, int count, int seconds) throws Exception {
        Queue<String> from = SEEN.get(name);
        long deadline = System.currentTimeMillis() + 1000L * seconds;
        while (from.size() < count && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        List<String> found = new ArrayList<>();
        for (String one = from.poll(); one != null; one = from.poll()) {
            found.add(one);
        }
        return String.join(" ", found);
    }

    private static String lite(String topic, long since, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("lite");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("lite" + System.nanoTime());
        consumer.setAutoCommit(false);
        consumer.start();
        try {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                if (since == 0) {
                    consumer.seekToBegin(queue);
                } else {
                    consumer.seek(queue, consumer.offsetForTimestamp(queue, since));
                }
            }
            TreeSet<String> bodies = new TreeSet<>();
            long deadline = System.currentTimeMillis() + 60_000;
            while (bodies.size() < count && System.currentTimeMillis() < deadline) {
                for (MessageExt message : consumer.poll(200)) {
                    bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                }
            }
            consumer.commitSync();
            long committed = 0;
            for (MessageQueue queue : queues) {
                committed += Math.max(consumer.committed(queue), 0);
            }
            return committed + " " + String.join(" ", bodies);
        } finally {
            consumer.shutdown();
        }
    }
}
