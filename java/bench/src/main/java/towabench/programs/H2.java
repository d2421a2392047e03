package towabench.programs;

import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Random;

/** The H2 database in memory, under a load like TPC-C's: new orders, payments, and questions about both. */
public final class H2 implements Program {
    private static final int DISTRICTS = 10;

    /** Per district. */
    private int customers;
    private int items;
    private int transactions;
    private int round;

    @Override
    public void prepare(Path scratch, int size) {
        customers = size * 30;
        items = size * 200;
        transactions = size * 250;
    }

    @Override
    public long run() throws SQLException {
        try (Connection c = DriverManager.getConnection("jdbc:h2:mem:bench" + round++)) {
            c.setAutoCommit(false);
            Random random = new Random(42);
            fill(c, random);
            work(c, random);
            return sum(c);
        }
    }

    private void fill(Connection c, Random random) throws SQLException {
        try (Statement s = c.createStatement()) {
            s.execute("create table district(id int primary key, next_order int, ytd decimal(12, 2))");
            s.execute("create table customer(id int primary key, district int, name varchar(40), balance decimal(12, 2), payments int)");
            s.execute("create table stock(item int primary key, name varchar(40), price decimal(8, 2), quantity int, ordered int)");
            s.execute("create table orders(district int, id int, customer int, lines int, primary key(district, id))");
            s.execute("create table line(district int, orders int, n int, item int, quantity int, amount decimal(10, 2), primary key(district, orders, n))");
            s.execute("create index by_name on customer(district, name)");
            s.execute("create index by_customer on orders(customer)");
        }
        insert(c, "insert into district values(?, 1, 0)", DISTRICTS, (p, i) -> {});
        insert(c, "insert into customer values(?, ?, ?, 0, 0)", customers * DISTRICTS, (p, i) -> {
            p.setInt(2, i % DISTRICTS);
            p.setString(3, "customer " + random.nextInt(customers));
        });
        insert(c, "insert into stock values(?, ?, ?, 100, 0)", items, (p, i) -> {
            p.setString(2, "item " + i);
            p.setBigDecimal(3, java.math.BigDecimal.valueOf(100 + random.nextInt(9900), 2));
        });
        c.commit();
    }

    private interface Setter {
        void set(PreparedStatement p, int i) throws SQLException;
    }

    private static void insert(Connection c, String sql, int rows, Setter rest) throws SQLException {
        try (PreparedStatement p = c.prepareStatement(sql)) {
            for (int i = 0; i < rows; i++) {
                p.setInt(1, i);
                rest.set(p, i);
                p.addBatch();
            }
            p.executeBatch();
        }
    }

    private void work(Connection c, Random random) throws SQLException {
        try (PreparedStatement number = c.prepareStatement("select next_order from district where id = ? for update");
            PreparedStatement advance = c.prepareStatement("update district set next_order = next_order + 1 where id = ?");
            PreparedStatement order = c.prepareStatement("insert into orders values(?, ?, ?, ?)");
            PreparedStatement price = c.prepareStatement("select price, quantity from stock where item = ?");
            PreparedStatement take = c.prepareStatement("update stock set quantity = ?, ordered = ordered + ? where item = ?");
            PreparedStatement line = c.prepareStatement("insert into line values(?, ?, ?, ?, ?, ?)");
            PreparedStatement pay = c.prepareStatement("update customer set balance = balance - ?, payments = payments + 1 where id = ?");
            PreparedStatement ytd = c.prepareStatement("update district set ytd = ytd + ? where id = ?");
            PreparedStatement status = c.prepareStatement("select o.id, sum(l.amount) from orders o join line l on l.district = o.district"
                + " and l.orders = o.id where o.customer = ? group by o.id order by o.id desc limit 1");
            PreparedStatement find = c.prepareStatement("select id, balance from customer where district = ? and name = ? order by id")) {
            for (int t = 0; t < transactions; t++) {
                int district = random.nextInt(DISTRICTS);
                int customer = random.nextInt(customers) * DISTRICTS + district;
                int kind = random.nextInt(100);
                if (kind < 45) {
                    number.setInt(1, district);
                    int id = (int) one(number);
                    set(advance, district).executeUpdate();
                    int lines = 3 + random.nextInt(8);
                    set(order, district, id, customer, lines).executeUpdate();
                    for (int n = 0; n < lines; n++) {
                        int item = random.nextInt(items);
                        int quantity = 1 + random.nextInt(10);
                        price.setInt(1, item);
                        java.math.BigDecimal each;
                        int left;
                        try (ResultSet r = price.executeQuery()) {
                            r.next();
                            each = r.getBigDecimal(1);
                            left = r.getInt(2);
                        }
                        set(take, left > quantity + 10 ? left - quantity : left + 91 - quantity, quantity, item).executeUpdate();
                        set(line, district, id, n, item, quantity).setBigDecimal(6, each.multiply(java.math.BigDecimal.valueOf(quantity)));
                        line.executeUpdate();
                    }
                    // One in a hundred is taken back, as in TPC-C.
                    if (random.nextInt(100) == 0) {
                        c.rollback();
                    }
                } else if (kind < 88) {
                    java.math.BigDecimal amount = java.math.BigDecimal.valueOf(100 + random.nextInt(500000), 2);
                    pay.setBigDecimal(1, amount);
                    pay.setInt(2, customer);
                    pay.executeUpdate();
                    ytd.setBigDecimal(1, amount);
                    ytd.setInt(2, district);
                    ytd.executeUpdate();
                } else if (kind < 94) {
                    status.setInt(1, customer);
                    one(status);
                } else {
                    find.setInt(1, district);
                    find.setString(2, "customer " + random.nextInt(customers));
                    one(find);
                }
                c.commit();
            }
        }
    }

    private static PreparedStatement set(PreparedStatement p, int... values) throws SQLException {
        for (int i = 0; i < values.length; i++) {
            p.setInt(i + 1, values[i]);
        }
        return p;
    }

    private static long one(PreparedStatement p) throws SQLException {
        try (ResultSet r = p.executeQuery()) {
            return r.next() ? r.getLong(1) : -1;
        }
    }

    private static long sum(Connection c) throws SQLException {
        long sum = 0;
        String[] questions = {"select sum(cast(ytd * 100 as bigint)) from district", "select sum(cast(balance * 100 as bigint)) + sum(payments) from customer",
            "select sum(quantity * ordered) from stock", "select count(*) * 31 + sum(lines) from orders",
            "select sum(cast(amount * 100 as bigint)) + count(*) from line"};
        for (String question : questions) {
            try (PreparedStatement p = c.prepareStatement(question)) {
                sum = sum * 31 + one(p);
            }
        }
        return sum;
    }
}
