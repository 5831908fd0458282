import com.alibaba.fastjson.JSON;
import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.client.DLedgerClientRpcNettyService;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.DLedgerRequestCode;
import io.openmessaging.storage.dledger.protocol.GetEntriesRequest;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import io.openmessaging.storage.dledger.protocol.LeadershipTransferRequest;
import io.openmessaging.storage.dledger.protocol.LeadershipTransferResponse;
import io.openmessaging.storage.dledger.protocol.MetadataRequest;
import io.openmessaging.storage.dledger.protocol.MetadataResponse;
import io.openmessaging.storage.dledger.protocol.RequestOrResponse;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Base64;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Java's own DLedgerClient, told what to do by lines on standard input; one line of answer for each.
 *
 * Arguments: group, peers. Commands: "append BASE64" (answer: code index), "get INDEX" (answer: code
 * term BASE64), "transfer FROM TO TERM" (answer: code), "metadata ID ADDRESS" (answer: code leader peers, or late),
 * "at GROUP ID ADDRESS append BASE64", "... get INDEX" and "... transfer FROM TO TERM" (one request to this
 * very member, without the client's redirection; answer: code leader, or late), "flood ID ADDRESS COUNT SIZE MS REFUSED"
 * (appends that are all in flight at once; answer: how many ended with each code, and how many of those
 * that were taken have an index of their own; a line on standard error when REFUSED of them were
 * answered 503).
 * The end of the input ends the process.
 */
public final class Client {
    private Client() {
    }

    public static void main(String[] arguments) throws Exception {
        DLedgerClient client = new DLedgerClient(arguments[0], arguments[1]);
        client.startup();
        System.out.println("started");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("append")) {
                AppendEntryResponse response = client.append(Base64.getDecoder().decode(words[1]));
                System.out.println(response.getCode() + " " + response.getIndex());
            } else if (words[0].equals("get")) {
                System.out.println(describe(client.get(Long.parseLong(words[1]))));
            } else if (words[0].equals("transfer")) {
                LeadershipTransferResponse response =
                    client.leadershipTransfer(words[1], words[2], Long.parseLong(words[3]));
                System.out.println(response.getCode());
            } else if (words[0].equals("metadata")) {
                System.out.println(answered(() -> metadata(arguments[0], words[1], words[2])));
            } else if (words[0].equals("at")) {
                System.out.println(answered(() -> at(words)));
            } else if (words[0].equals("flood")) {
                System.out.println(flood(arguments[0], words));
            } else if (words[0].equals("stop")) {
                System.out.println("stopped");
                break;
            } else {
                System.out.println("what is " + words[0] + "?");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** What a call says, or "late" when Java's time for it (3 s, 10 s for a transfer) was over. */
    private static String answered(Callable<String> call) throws Exception {
        try {
            return call.call();
        } catch (RemotingException | ExecutionException e) {
            return "late";
        }
    }

    private static String metadata(String group, String id, String address) throws Exception {
        DLedgerClientRpcNettyService rpc = new DLedgerClientRpcNettyService();
        rpc.startup();
        rpc.updatePeers(id + "-" + address);
        MetadataRequest request = new MetadataRequest();
        request.setGroup(group);
        request.setRemoteId(id);
        MetadataResponse response = rpc.metadata(request).get();
        rpc.shutdown();
        return response.getCode() + " " + response.getLeaderId() + " " + response.getPeers().size();
    }

    private static String at(String[] words) throws Exception {
        DLedgerClientRpcNettyService rpc = new DLedgerClientRpcNettyService();
        rpc.startup();
        rpc.updatePeers(words[2] + "-" + words[3]);
        RequestOrResponse response;
        if (words[4].equals("append")) {
            AppendEntryRequest request = new AppendEntryRequest();
            request.setBody(Base64.getDecoder().decode(words[5]));
            response = rpc.append(addressed(request, words)).get();
        } else if (words[4].equals("get")) {
            GetEntriesRequest request = new GetEntriesRequest();
            request.setBeginIndex(Long.parseLong(words[5]));
            response = rpc.get(addressed(request, words)).get();
        } else {
            LeadershipTransferRequest request = new LeadershipTransferRequest();
            request.setTransferId(words[5]);
            request.setTransfereeId(words[6]);
            request.setTerm(Long.parseLong(words[7]));
            response = rpc.leadershipTransfer(addressed(request, words)).get();
        }
        rpc.shutdown();
        return response.getCode() + " " + response.getLeaderId();
    }

    private static <T extends RequestOrResponse> T addressed(T request, String[] words) {
        request.setGroup(words[1]);
        request.setRemoteId(words[2]);
        return request;
    }

    /** The client of DLedger waits for every answer; the remoting client under it does not. */
    private static String flood(String group, String[] words) throws Exception {
        int count = Integer.parseInt(words[3]);
        long timeoutMs = Long.parseLong(words[5]);
        NettyRemotingClient remoting = new NettyRemotingClient(new NettyClientConfig());
        remoting.start();
        Map<String, Integer> ended = new ConcurrentHashMap<>();
        Set<Long> indexes = ConcurrentHashMap.newKeySet();
        CountDownLatch open = new CountDownLatch(count);
        CountDownLatch refused = new CountDownLatch(Integer.parseInt(words[6]));
        new Thread(() -> {
            try {
                refused.await();
                System.err.println("flood: " + words[6] + " refused");
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }).start();
        for (int number = 0; number < count; number++) {
            byte[] body = Arrays.copyOf(("flood " + number + ";").getBytes(), Integer.parseInt(words[4]));
            AppendEntryRequest request = new AppendEntryRequest();
            request.setGroup(group);
            request.setRemoteId(words[1]);
            request.setBody(body);
            RemotingCommand command = RemotingCommand.createRequestCommand(DLedgerRequestCode.APPEND.getCode(), null);
            command.setBody(JSON.toJSONBytes(request));
            remoting.invokeAsync(words[2], command, timeoutMs, future -> {
                RemotingCommand answer = future.getResponseCommand();
                String end = "none";
                if (answer != null && answer.getBody() == null) {
                    end = "bodyless";
                } else if (answer != null) {
                    AppendEntryResponse response = JSON.parseObject(answer.getBody(), AppendEntryResponse.class);
                    end = Integer.toString(response.getCode());
                    if (response.getCode() == 200) {
                        indexes.add(response.getIndex());
                    }
                }
                ended.merge(end, 1, Integer::sum);
                if (end.equals("503")) {
                    refused.countDown();
                }
                open.countDown();
            });
        }
        boolean all = open.await(timeoutMs + 10_000, TimeUnit.MILLISECONDS);
        remoting.shutdown();
        StringBuilder text = new StringBuilder(all ? "all" : "hung=" + open.getCount());
        new TreeMap<>(ended).forEach((end, times) -> text.append(" ").append(end).append("=").append(times));
        return text.append(" indexes=").append(indexes.size()).toString();
    }

    private static String describe(GetEntriesResponse response) {
        if (response.getEntries() == null || response.getEntries().isEmpty()) {
            return response.getCode() + " -1 ";
        }
        DLedgerEntry entry = response.getEntries().get(0);
        byte[] body = entry.getBody() == null ? new byte[0] : entry.getBody();
        return response.getCode() + " " + entry.getTerm() + " " + Base64.getEncoder().encodeToString(body);
    }
}
