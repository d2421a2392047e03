package systemtest.harness;

/** A key as persistence frameworks advise: its hash code is that of its class, so that of the class must be the same in every run. */
public final class Entity {
    private final int id;

    public Entity(int id) {
        this.id = id;
    }

    @Override
    public int hashCode() {
        return getClass().hashCode();
    }

    @Override
    public boolean equals(Object o) {
        return o instanceof Entity e && e.id == id;
    }

    @Override
    public String toString() {
        return "entity " + id;
    }
}
