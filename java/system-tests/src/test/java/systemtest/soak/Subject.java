package systemtest.soak;

import java.util.Random;
import java.util.function.Supplier;

/**
 * One supported type under the soak: how its durable instance is made, one random operation on it, and what its own methods say of it.
 *
 * @param shared several threads may work on it at once, as its contract says; else they take turns
 */
record Subject<T>(String name, boolean shared, Supplier<T> make, Step<T> step, Check<T> check) {
    interface Step<T> {
        void run(T it, Random random) throws Exception;
    }

    /** What the type's own methods say: text that must be the same after recovery. Throws if they contradict each other. */
    interface Check<T> {
        String run(T it);
    }

    @SuppressWarnings("unchecked")
    void step(Object it, Random random) throws Exception {
        step.run((T) it, random);
    }

    @SuppressWarnings("unchecked")
    String check(Object it) {
        return check.run((T) it);
    }
}
