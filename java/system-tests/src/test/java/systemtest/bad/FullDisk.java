package systemtest.bad;

import io.towa.Durability;
import io.towa.DurableRoot;
import io.towa.PoolException;
import io.towa.Towa;
import io.towa.TowaOptions;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Random;

/**
 * A program that fills its file system: {@code FullDisk FILE DURABILITY BYTES}, with arrays of so many bytes. It goes on when it is
 * refused: it stores to pages that were written back, in any order, makes room in the pool and fills that.
 */
public final class FullDisk {
    @DurableRoot
    private static List<byte[]> list;

    public static void main(String[] args) throws Exception {
        Durability durability = Durability.valueOf(args[1]);
        int bytes = Integer.parseInt(args[2]);
        Towa.open(Path.of(args[0]), TowaOptions.DEFAULT.withCapacity(1L << 30).withDurability(durability));
        if (list == null) {
            list = new ArrayList<>();
        }
        Random random = new Random(1);
        for (int round = 0; round < 3; round++) {
            fill(bytes);
            if (durability == Durability.PROCESS) {
                new ProcessBuilder("sync", "-f", args[0]).start().waitFor();
            }
            for (int i = 0; i < 20_000; i++) {
                byte[] b = list.get(random.nextInt(list.size()));
                b[random.nextInt(b.length)]++;
            }
            for (int i = 0; i < list.size(); i += 3) {
                list.set(i, null);
            }
            list.removeIf(Objects::isNull);
            Towa.collect();
            if (!Towa.verify().isEmpty()) {
                throw new AssertionError(Towa.verify().toString());
            }
        }
        System.out.println("done");
        // As a kill would: on a full file system the last commit has no room for its log.
        Runtime.getRuntime().halt(0);
    }

    private static void fill(int bytes) {
        for (int i = 0; i < 1_000_000; i++) {
            try {
                list.add(new byte[bytes]);
            } catch (PoolException e) {
                if (e.reason() != PoolException.Reason.FULL) {
                    throw e;
                }
                System.out.println("refused at " + list.size());
                return;
            }
        }
        throw new AssertionError("never full");
    }
}
