/* The threads of the library: started when they are first needed, shared by all calls, asleep when nothing is to be done.

   A job has parts, which the caller and the workers take one after the other. A worker that wakes up too late finds no
   part left, and nobody waits for it: the caller takes a job back from a worker that has not begun. */

#if !defined(_WIN32) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "plan.h"

#define MAX_WORKERS (MAX_THREADS - 1)
#define SPINS 4000    /* looks at a state before a thread sleeps */
#define MIN_SPINS 64  /* the same where the last looks were in vain */
#define CACHE_LINE 64 /* bytes */

/* ---- what systems differ in ---------------------------------------------------------------------------------------- */

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOUSER /* its INPUT is not ours */
#include <windows.h>

typedef SRWLOCK mutex;
typedef CONDITION_VARIABLE condition;
typedef volatile LONG atomic;
#define MUTEX_INITIALIZER SRWLOCK_INIT
#define CONDITION_INITIALIZER CONDITION_VARIABLE_INIT
#define RELAX() YieldProcessor()

static void lock(mutex *m) { AcquireSRWLockExclusive(m); }
static int try_lock(mutex *m) { return TryAcquireSRWLockExclusive(m) != 0; }
static void unlock(mutex *m) { ReleaseSRWLockExclusive(m); }
static void sleep_on(condition *c, mutex *m) { SleepConditionVariableSRW(c, m, INFINITE, 0); }
static void wake_one(condition *c) { WakeConditionVariable(c); }
static int load(atomic *v) { return (int)InterlockedCompareExchange(v, 0, 0); }
static void store(atomic *v, int to) { InterlockedExchange(v, to); }
static int fetch_add(atomic *v, int by) { return (int)InterlockedExchangeAdd(v, by); }
static int exchange_if(atomic *v, int from, int to) { return InterlockedCompareExchange(v, to, from) == from; }

static int processors(void) {
    DWORD_PTR process, system;
    int count = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &system)) return 1;
    for (; process; process &= process - 1) count++;
    return count;
}
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

typedef pthread_mutex_t mutex;
typedef pthread_cond_t condition;
typedef int atomic;
#define MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
#define CONDITION_INITIALIZER PTHREAD_COND_INITIALIZER
#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

static void lock(mutex *m) { pthread_mutex_lock(m); }
static int try_lock(mutex *m) { return !pthread_mutex_trylock(m); }
static void unlock(mutex *m) { pthread_mutex_unlock(m); }
static void sleep_on(condition *c, mutex *m) { pthread_cond_wait(c, m); }
static void wake_one(condition *c) { pthread_cond_signal(c); }
static int load(atomic *v) { return __atomic_load_n(v, __ATOMIC_SEQ_CST); }
static void store(atomic *v, int to) { __atomic_store_n(v, to, __ATOMIC_SEQ_CST); }
static int fetch_add(atomic *v, int by) { return __atomic_fetch_add(v, by, __ATOMIC_SEQ_CST); }
static int exchange_if(atomic *v, int from, int to) {
    return __atomic_compare_exchange_n(v, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int processors(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}
#endif

/* ---- states that threads wait for ----------------------------------------------------------------------------------- */

/* A state that one thread waits for and another one sets. */
typedef struct {
    mutex guard;
    condition changed;
    atomic state, sleeping;
    int spins; /* of its next wait: fewer after looks in vain, as on processors that have other work */
    char padding[CACHE_LINE];
} signal_state;

static void set_state(signal_state *s, int to) {
    store(&s->state, to);
    if (!load(&s->sleeping)) return;
    lock(&s->guard);
    wake_one(&s->changed);
    unlock(&s->guard);
}

static void await_state(signal_state *s, int wanted) {
    for (int i = 0; i < s->spins; i++) {
        if (load(&s->state) == wanted) {
            s->spins = s->spins * 2 < SPINS ? s->spins * 2 : SPINS;
            return;
        }
        RELAX();
    }
    s->spins = s->spins / 2 > MIN_SPINS ? s->spins / 2 : MIN_SPINS;
    lock(&s->guard);
    store(&s->sleeping, 1);
    while (load(&s->state) != wanted) sleep_on(&s->changed, &s->guard);
    store(&s->sleeping, 0);
    unlock(&s->guard);
}

/* ---- the pool ------------------------------------------------------------------------------------------------------- */

enum { IDLE, POSTED, RUNNING }; /* states of a worker's `job`; RUNNING is set by the worker itself */

typedef struct {
    signal_state job, done; /* `done` is 1 when the worker has finished what it took */
    int number;
} worker;

static mutex busy = MUTEX_INITIALIZER;      /* held by the call that uses the pool */
static worker workers[MAX_WORKERS + 1];     /* workers[i] is thread i of a job; 0, the caller, is not used */
static int started, first_spins = SPINS;    /* how many workers there are */

typedef struct {
    part_function run;
    void *job;
    int parts;
    atomic next; /* part */
} shared_job;

static shared_job current;

static void take_parts(shared_job *j, int thread) {
    for (int part; (part = fetch_add(&j->next, 1)) < j->parts;) j->run(j->job, part, thread);
}

static void serve(worker *w) {
    for (;;) {
        await_state(&w->job, POSTED);
        if (!exchange_if(&w->job.state, POSTED, RUNNING)) continue; /* the caller took it back */
        take_parts(&current, w->number);
        store(&w->job.state, IDLE);
        set_state(&w->done, 1);
    }
}

#if defined(_WIN32)
static DWORD WINAPI thread_main(void *given) {
    serve((worker *)given);
    return 0;
}

static int start_thread(worker *w) {
    HANDLE thread = CreateThread(NULL, 0, thread_main, w, 0, NULL);
    return thread && CloseHandle(thread);
}

static void prepare_for_fork(void) {}
#else
static void *thread_main(void *given) {
    serve((worker *)given);
    return NULL;
}

/* Signals are for the threads of the program. */
static int start_thread(worker *w) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before)) return 0;
    const int failed = pthread_create(&thread, NULL, thread_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed && !pthread_detach(thread);
}

/* The child of a fork has none of the threads, and whoever held the lock is not there. */
static void after_fork(void) {
    started = 0;
    busy = (mutex)MUTEX_INITIALIZER;
}

static void prepare_for_fork(void) {
    static int registered;
    if (!registered) registered = !pthread_atfork(NULL, NULL, after_fork);
}
#endif

/* Starts workers up to number `count`; returns how many there are. */
static int start_workers(int count) {
    if (started >= count) return count;
    prepare_for_fork();
    first_spins = count < processors() ? SPINS : 0; /* who looks must not take a processor from who works */
    for (; started < count && started < MAX_WORKERS; started++) {
        worker *w = &workers[started + 1];
        const signal_state fresh = {.guard = MUTEX_INITIALIZER, .changed = CONDITION_INITIALIZER, .spins = first_spins};
        *w = (worker){fresh, fresh, started + 1};
        if (!start_thread(w)) break;
    }
    return started < count ? started : count;
}

void run_parts(part_function run, void *job, int parts, int threads) {
    const int taken = threads > 1 && parts > 1 && try_lock(&busy);
    const int others = taken ? start_workers((threads < parts ? threads : parts) - 1) : 0;
    if (!others) {
        if (taken) unlock(&busy);
        for (int i = 0; i < parts; i++) run(job, i, 0);
        return;
    }
    current.run = run, current.job = job, current.parts = parts;
    store(&current.next, 0);
    for (int i = 1; i <= others; i++) {
        store(&workers[i].done.state, 0);
        set_state(&workers[i].job, POSTED);
    }
    take_parts(&current, 0);
    for (int i = 1; i <= others; i++)
        if (!exchange_if(&workers[i].job.state, POSTED, IDLE)) await_state(&workers[i].done, 1);
    unlock(&busy);
}

/* ---- threads of a library that computes between our calls ------------------------------------------------------------ */

static team_function team;

void use_team(team_function given) { team = given; }

static void take_shared(void *given) { take_parts((shared_job *)given, 0); }

/* The team always has all its threads: OpenMP ends those that a smaller one leaves over. */
void run_parts_in_team(part_function run, void *job, int parts, int threads) {
    if (!team || threads < 2 || parts < 2) {
        run_parts(run, job, parts, threads);
        return;
    }
    shared_job j = {.run = run, .job = job, .parts = parts};
    team(take_shared, &j, (unsigned)threads, 0);
}
