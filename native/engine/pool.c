/* The threads of the library: started when they are first needed, and shared by all calls. */

#include "plan.h"

#if defined(_WIN32)
void run_threads(void (*run)(void *job, int thread), void *job, int threads) {
    for (int i = 0; i < threads; i++) run(job, i);
}
#else
#include <pthread.h>
#include <sched.h>

#define MAX_WORKERS 255
#define SPINS 4000 /* looks for the next job before a worker sleeps */

/* A worker takes a job whenever `posted` changes. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    unsigned posted;
    int sleeping, number;
    char padding[ALIGNMENT]; /* two workers do not share a cache line */
} worker;

static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER; /* held by the call that uses the pool */
static worker workers[MAX_WORKERS + 1];                  /* workers[i] is thread i of a job; 0 is the caller */
static int started;                                      /* how many workers there are */
static void (*job_run)(void *job, int thread);
static void *job_given;
static int remaining;

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX() ((void)0)
#endif

static void wait_for_job(worker *w, unsigned seen) {
    for (int i = 0; i < SPINS; i++) {
        if (__atomic_load_n(&w->posted, __ATOMIC_ACQUIRE) != seen) return;
        RELAX();
    }
    pthread_mutex_lock(&w->lock);
    __atomic_store_n(&w->sleeping, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&w->posted, __ATOMIC_SEQ_CST) == seen) pthread_cond_wait(&w->wake, &w->lock);
    __atomic_store_n(&w->sleeping, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&w->lock);
}

static void *work(void *given) {
    worker *w = (worker *)given;
    for (unsigned seen = 0;; seen++) {
        wait_for_job(w, seen);
        job_run(job_given, w->number);
        __atomic_sub_fetch(&remaining, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void post_job(worker *w) {
    __atomic_add_fetch(&w->posted, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&w->sleeping, __ATOMIC_SEQ_CST)) return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

/* The child of a fork has none of the threads. */
static void after_fork(void) {
    started = 0;
    busy = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* Starts workers up to number `count`; returns whether they are there. */
static int start_workers(int count) {
    static int registered;
    if (!registered) registered = !pthread_atfork(NULL, NULL, after_fork);
    for (; started < count && started < MAX_WORKERS; started++) {
        worker *w = &workers[started + 1];
        pthread_t thread;
        *w = (worker){.number = started + 1};
        pthread_mutex_init(&w->lock, NULL), pthread_cond_init(&w->wake, NULL);
        if (pthread_create(&thread, NULL, work, w)) break;
        pthread_detach(thread);
    }
    return started >= count;
}

void run_threads(void (*run)(void *job, int thread), void *job, int threads) {
    const int taken = threads > 1 && !pthread_mutex_trylock(&busy);
    if (!taken || !start_workers(threads - 1)) {
        if (taken) pthread_mutex_unlock(&busy);
        for (int i = 0; i < threads; i++) run(job, i);
        return;
    }
    job_run = run, job_given = job;
    __atomic_store_n(&remaining, threads - 1, __ATOMIC_SEQ_CST);
    for (int i = 1; i < threads; i++) post_job(&workers[i]);
    run(job, 0);
    for (int i = 0; __atomic_load_n(&remaining, __ATOMIC_ACQUIRE); i++) {
        if (i < SPINS)
            RELAX();
        else
            sched_yield();
    }
    pthread_mutex_unlock(&busy);
}
#endif
