/* Both ends of the benchmark's wire in C: a server with an exact schedule and a log, and a client that is the floor.
 *
 *   wire serve TTFT_US ITL_US LOG [steps]      prints its port; one event a write; each logged before its send();
 *                                              steps: all streams' events at once, as an engine's steps make them
 *   wire ask PORT STREAMS REQUESTS TOKENS RATE DUMP   closed loop, or open at RATE requests/s (constant); no parsing
 *
 * A log or dump record is 64 bytes of request id and the CLOCK_MONOTONIC ns of one event. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 20000
#define INBOX 16384

struct record { char id[64]; int64_t ns; };
struct conn { int fd, tokens, sent, close; int64_t due; int used; char id[64], inbox[INBOX]; };

static FILE *log_file;
static int steps;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void note(const char *id, int64_t ns) {
    struct record r = {.ns = ns};
    memcpy(r.id, id, sizeof r.id);
    fwrite(&r, sizeof r, 1, log_file);
}

static void must(int ok, const char *what) {
    if (!ok) { perror(what); exit(1); }
}

/* The server. All waits are of two lengths, so two queues that are in order by themselves serve as its timers. */
struct queue { struct conn **at; unsigned head, tail, size; };
static struct queue first, next;
static struct conn *conns[MOST + 100];

static void push(struct queue *q, struct conn *c) { q->at[q->tail++ % q->size] = c; }

static void end(struct conn *c) {
    if (c->fd >= 0) { close(c->fd); conns[c->fd] = NULL; }
    c->fd = -1;
    c->due = 0;
}

static void say(struct conn *c, const char *data, int length) {
    if (c->fd >= 0 && send(c->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT) != length) end(c);
}

static int chunk(char *out, const char *data) { return sprintf(out, "%zx\r\n%s\r\n", strlen(data), data); }

static void emit(struct conn *c, int64_t itl) {
    char out[2048];
    if (c->fd < 0) { free(c); return; }
    int length = chunk(out, "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":"
                            "[{\"index\":0,\"text\":\" tok\",\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    note(c->id, now_ns());
    say(c, out, length);
    if (++c->sent < c->tokens && c->fd >= 0) {
        c->due = steps ? (now_ns() / itl + 1) * itl : c->due + itl;
        push(&next, c);
        return;
    }
    char last[512];
    snprintf(last, sizeof last, "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":"
             "{\"prompt_tokens\":16,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", c->sent);
    length = chunk(out, last);
    length += sprintf(out + length, "0\r\n\r\n");
    say(c, out, length);
    c->due = 0;
    if (c->close || c->fd < 0) { end(c); free(c); }
}

static void serve_request(struct conn *c, int64_t ttft) {
    for (;;) {
        char *body = memmem(c->inbox, c->used, "\r\n\r\n", 4), *field, *line;
        if (!body || c->due) return;
        *body = 0;
        body += 4;
        int length = (field = strcasestr(c->inbox, "\r\ncontent-length:")) ? atoi(field + 17) : 0;
        if (c->used < body - c->inbox + length) { body[-4] = '\r'; return; }
        memset(c->id, 0, sizeof c->id);
        if ((field = strcasestr(c->inbox, "\r\nx-request-id:"))) {
            field += 15 + strspn(field + 15, " ");
            if ((line = strstr(field, "\r\n"))) *line = 0;
            snprintf(c->id, sizeof c->id, "%s", field);
            if (line) *line = '\r';
        }
        c->close = strcasestr(c->inbox, "\r\nconnection: close") != NULL;
        int get = !strncmp(c->inbox, "GET ", 4);
        int models = get && strstr(c->inbox, " /v1/models ");
        char kept = body[length];
        body[length] = 0;
        char *most = strstr(body, "\"max_tokens\":");
        c->tokens = most ? atoi(most + 13) : 16;
        body[length] = kept;
        int used = body - c->inbox + length;
        memmove(c->inbox, c->inbox + used, c->used -= used);
        if (get) {
            char out[512];
            const char *text = models ? "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"max_model_len\":131072}]}" : "";
            say(c, out, sprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(text), text));
            continue;
        }
        const char *head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        say(c, head, strlen(head));
        c->sent = 0;
        c->due = now_ns() + ttft;
        push(&first, c);
    }
}

static void serve(int64_t ttft, int64_t itl) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof place;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0), one = 1;
    must(!bind(listener, (struct sockaddr *)&place, size) && !listen(listener, 4096), "bind");
    getsockname(listener, (struct sockaddr *)&place, &size);
    printf("%d\n", ntohs(place.sin_port));
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[256];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    first.size = next.size = 2 * MOST;
    first.at = calloc(first.size, sizeof *first.at);
    next.at = calloc(next.size, sizeof *next.at);
    for (;;) {
        int64_t due = INT64_MAX;
        if (first.head != first.tail) due = first.at[first.head % first.size]->due;
        if (next.head != next.tail && next.at[next.head % next.size]->due < due) due = next.at[next.head % next.size]->due;
        int64_t wait = due == INT64_MAX ? 200000000 : due - now_ns();
        struct timespec limit = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        int count = epoll_pwait2(poll, ready, 256, &limit, NULL);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    if (fd >= MOST) { close(fd); continue; }
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    struct conn *c = conns[fd] = calloc(1, sizeof *c);
                    c->fd = fd;
                    event.data.fd = fd;
                    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
                }
                continue;
            }
            struct conn *c = conns[fd];
            if (!c) continue;
            int got = recv(fd, c->inbox + c->used, INBOX - 1 - c->used, 0);
            if (got <= 0 && !(got < 0 && errno == EAGAIN)) {
                int waits = c->due != 0;
                end(c);
                if (!waits) free(c);
            } else if (got > 0) {
                c->used += got;
                serve_request(c, ttft);
            }
        }
        int64_t now = now_ns();
        struct queue *queues[] = {&first, &next};
        for (int i = 0; i < 2; i++)
            while (queues[i]->head != queues[i]->tail && queues[i]->at[queues[i]->head % queues[i]->size]->due <= now)
                emit(queues[i]->at[queues[i]->head++ % queues[i]->size], itl);
    }
}

/* The client: what a program costs that only connects, sends, reads and takes the time. */
static void ask(int port, int streams, int requests, int tokens, double rate) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int poll = epoll_create1(0), open_now = 0, sent = 0, over = 0, one = 1;
    static char buffer[262144], ids[MOST + 100][64];
    struct epoll_event event = {.events = EPOLLIN}, ready[256];
    int64_t start = now_ns() + 10000000;
    while (over < requests) {
        while (sent < requests && (rate > 0 ? start + sent * 1e9 / rate <= now_ns() : open_now < streams)) {
            char out[512], body[128];
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            must(fd >= 0 && fd < MOST && !connect(fd, (struct sockaddr *)&place, sizeof place), "connect");
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            memset(ids[fd], 0, sizeof ids[fd]);
            snprintf(ids[fd], sizeof ids[fd], "c-%d", sent);
            snprintf(body, sizeof body, "{\"prompt\":[1,2,3,4],\"max_tokens\":%d,\"stream\":true}", tokens);
            int length = sprintf(out, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\nConnection: close\r\n"
                                 "Content-Length: %zu\r\n\r\n%s", ids[fd], strlen(body), body);
            must(send(fd, out, length, 0) == length, "send");
            event.data.fd = fd;
            epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
            open_now++;
            sent++;
        }
        int64_t wait = rate > 0 && sent < requests ? start + sent * 1e9 / rate - now_ns() : 1000000000;
        struct timespec limit = {wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0};
        int count = epoll_pwait2(poll, ready, 256, &limit, NULL);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd, got = recv(fd, buffer, sizeof buffer - 1, 0);
            int64_t stamp = now_ns();
            if (got > 0) {
                buffer[got] = 0;
                for (char *at = buffer; (at = strstr(at, "\"text\":\" tok\"")); at++) note(ids[fd], stamp);
            }
            if (got <= 0 || (got > 7 && !memcmp(buffer + got - 7, "\r\n0\r\n\r\n", 7))) {
                close(fd);
                open_now--;
                over++;
            }
        }
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%f\n", used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
}

static void stop(int number) {
    (void)number;
    fflush(log_file);
    _exit(0);
}

int main(int argc, char **argv) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if ((argc == 5 || argc == 6) && !strcmp(argv[1], "serve")) {
        steps = argc == 6 && !strcmp(argv[5], "steps");
        log_file = fopen(argv[4], "w");
        must(log_file != NULL, argv[4]);
        signal(SIGTERM, stop);
        serve(atoll(argv[2]) * 1000, atoll(argv[3]) * 1000);
    } else if (argc == 8 && !strcmp(argv[1], "ask")) {
        log_file = fopen(argv[7], "w");
        must(log_file != NULL, argv[7]);
        ask(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atof(argv[6]));
        fclose(log_file);
    } else {
        fprintf(stderr, "usage: wire serve TTFT_US ITL_US LOG [steps] | wire ask PORT STREAMS REQUESTS TOKENS RATE DUMP\n");
        return 2;
    }
    return 0;
}
