package io.towa.graph;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.towa.PoolException;
import io.towa.TowaOptions;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The rows of docs/java-policy.md on classes that change: each is compiled, saved in its first version and brought back in the second. */
class PolicyPageTest {
    private static final Pattern ROW = Pattern.compile("\\| `(.*(?:class|record) P.*)` \\| `(.*)` \\| (followed|refused): (.*) \\|");
    private static final Pattern IS = Pattern.compile("`([^`]*)` is `([^`]*)`");

    record Row(String before, String after, boolean followed, String what) {}

    @TempDir
    Path dir;

    static List<Row> rows() throws Exception {
        List<Row> rows = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of("../../docs/java-policy.md"))) {
            Matcher m = ROW.matcher(line);
            if (m.matches()) {
                rows.add(new Row(m.group(1), m.group(2), m.group(3).equals("followed"), m.group(4)));
            }
        }
        assertTrue(rows.size() > 10, "the page has " + rows.size() + " rows");
        return rows;
    }

    private static Object value(Object o, String name) throws Exception {
        if (!name.endsWith("()")) {
            return Versions.get(o, name);
        }
        var m = o.getClass().getDeclaredMethod(name.substring(0, name.length() - 2));
        m.setAccessible(true);
        return m.invoke(o);
    }

    @ParameterizedTest
    @MethodSource("rows")
    void isAsThePageSays(Row r) throws Exception {
        Versions versions = new Versions(dir);
        Path p = SavedPool.save(Versions.make(versions.classes(r.before), "P"));
        TowaOptions now = TowaOptions.DEFAULT.withLoader(versions.classes(r.after));
        if (!r.followed) {
            PoolException e = assertThrows(PoolException.class, () -> SavedPool.load(p, now));
            assertTrue(e.getMessage().contains(r.what.replace("`", "")), e.getMessage());
            return;
        }
        Object o = SavedPool.load(p, now);
        Matcher is = IS.matcher(r.what);
        int values = 0;
        for (; is.find(); values++) {
            assertEquals(is.group(2), String.valueOf(value(o, is.group(1))), is.group(1));
        }
        assertTrue(values > 0, r.what);
    }
}
