/* The part of tx_behaviour.c about several threads. Included there. */

enum { THREADS = 4, ADDITIONS = 3000 };

static int add_one(towa_dtx *tx, void *arg)
{
    uint64_t a = 0, b = 0;
    PASS_ON(towa_dtx_read(tx, &cells->a, &a));
    PASS_ON(towa_dtx_read(tx, &cells->b, &b));
    if (a != b)
        return 1;
    if (arg && a % 7 == 3)
        PASS_ON(towa_dtx_free(tx, NULL)); /* to software, beside those in hardware */
    PASS_ON(towa_dtx_write(tx, &cells->a, a + 1));
    return towa_dtx_write(tx, &cells->b, b + 1);
}

static void *adds(void *arg)
{
    towa_dtx_thread *mine = towa_dtx_register(pool);
    int i;
    EXPECT(mine);
    for (i = 0; i < ADDITIONS; i++)
        OK(towa_dtx_run(mine, add_one, arg));
    OK(towa_dtx_unregister(mine));
    return NULL;
}

static void count_together(uint64_t so_far)
{
    pthread_t all[THREADS];
    int i;
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&all[i], NULL, adds, i % 2 ? thread : NULL) == 0);
    for (i = 0; i < THREADS; i++)
        pthread_join(all[i], NULL);
    EXPECT(holds(so_far + THREADS * ADDITIONS, so_far + THREADS * ADDITIONS));
}

static void test_conflict(void)
{
    uint64_t so_far = 0;
    for (small.tm = TOWA_DTX_TM_AUTO; small.tm <= TOWA_DTX_TM_LOCK; small.tm++) {
        if (small.tm == TOWA_DTX_TM_RTM)
            continue; /* what is there is AUTO */
        begin();
        EXPECT(holds(so_far, so_far));
        count_together(so_far);
        so_far += THREADS * ADDITIONS;
        end();
    }
}

static void test_buffered(void)
{
    small.commit = TOWA_DTX_BUFFERED;
    begin();
    count_together(0);
    OK(towa_dtx_pool_sync(pool));
    end();
    small.commit = TOWA_DTX_STRICT;
    begin();
    EXPECT(holds(THREADS * ADDITIONS, THREADS * ADDITIONS));
    end();
}

static void test_volatile(void)
{
    struct towa_dtx_stats stats = {.size = sizeof stats};
    small.flags = TOWA_DTX_VOLATILE | TOWA_DTX_PREFAULT;
    path = NULL;
    begin();
    count_together(0);
    OK(towa_dtx_pool_stats(pool, &stats));
    EXPECT(stats.tm != TOWA_DTX_TM_RTM || stats.commits_hardware > ADDITIONS);
    end();
}

/* A body that waits for another thread by asking to be run again. */
static int wait_for_a(towa_dtx *tx, void *arg)
{
    uint64_t a = 0;
    (void)arg;
    PASS_ON(towa_dtx_read(tx, &cells->a, &a));
    return a == 0 ? TOWA_DTX_AGAIN : towa_dtx_write(tx, &cells->b, a);
}

static void *waits(void *arg)
{
    towa_dtx_thread *mine = towa_dtx_register(pool);
    OK(towa_dtx_run(mine, wait_for_a, arg));
    OK(towa_dtx_unregister(mine));
    return NULL;
}

static void test_again(void)
{
    pthread_t other;
    struct pair p = {7, 0, 0};
    begin();
    EXPECT(pthread_create(&other, NULL, waits, NULL) == 0);
    usleep(20000);
    OK(towa_dtx_run(thread, set_pair, &p));
    pthread_join(other, NULL);
    EXPECT(holds(7, 7));
    end();
}
