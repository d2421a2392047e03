package towabench.programs.big;

import java.nio.file.Path;
import java.util.Properties;
import org.python.core.PyCode;
import org.python.util.PythonInterpreter;
import towabench.programs.Program;

/** Jython runs a script: classes, generators, dictionaries, sorting, exceptions, strings; the compiler too, in every iteration. */
public final class Jython implements Program {
    private static final String SCRIPT = """
        class Shape(object):
            def __init__(self, name, w, h):
                self.name, self.w, self.h = name, w, h
            def area(self):
                return self.w * self.h
            def __cmp__(self, other):
                return cmp(self.area(), other.area())

        class Square(Shape):
            def __init__(self, name, w):
                Shape.__init__(self, name, w, w)

        def primes(n):
            found = []
            for i in xrange(2, n):
                if all(i % p for p in found if p * p <= i):
                    found.append(i)
                    yield i

        def words(seed, n):
            for i in xrange(n):
                seed = (seed * 1103515245 + 12345) & 0x7fffffff
                yield 'w%d' % (seed % 997)

        def queens(n, row=0, cols=0, left=0, right=0):
            if row == n:
                return 1
            count = 0
            for col in range(n):
                bit = 1 << col
                if not (cols & bit or left & (1 << (row + col)) or right & (1 << (row - col + n))):
                    count += queens(n, row + 1, cols | bit, left | (1 << (row + col)), right | (1 << (row - col + n)))
            return count

        def work(size):
            total = 0
            for again in range(size):
                counts = {}
                for w in words(again, 3000):
                    counts[w] = counts.get(w, 0) + 1
                total += sum(c * len(w) for w, c in sorted(counts.items(), key=lambda x: (-x[1], x[0]))[:50])
                shapes = [Square('s%d' % i, i % 17) if i % 3 else Shape('r', i % 7, i % 11) for i in range(500)]
                shapes.sort()
                total += sum(s.area() * i for i, s in enumerate(shapes))
                total += sum(primes(400))
                total += queens(5)
                text = ','.join(str(x) for x in range(500))
                total += sum(int(x) for x in text.split(',')) + len(text.replace('1', 'one'))
                try:
                    total += {}['absent']
                except KeyError, e:
                    total += len(str(e))
                total = total % 1000000007
            return total
        """;

    private int size;
    private PythonInterpreter python;

    @Override
    public void prepare(Path scratch, int size) {
        this.size = size;
        Properties settings = new Properties();
        settings.setProperty("python.cachedir.skip", "true");
        settings.setProperty("python.import.site", "false");
        settings.setProperty("python.console.encoding", "UTF-8");
        PythonInterpreter.initialize(System.getProperties(), settings, new String[0]);
        python = new PythonInterpreter();
    }

    @Override
    public long run() {
        PyCode code = python.compile(SCRIPT, "bench.py");
        python.exec(code);
        return python.eval("work(" + size + ")").asLong();
    }

    @Override
    public void close() {
        python.close();
    }
}
