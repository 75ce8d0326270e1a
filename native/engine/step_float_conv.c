/* Convolutions of float32 images: windows of some results are copied side by side, into memory that stays in the cache, and
   multiplied; of one channel a group, taps are added where they are. */

#include "product.h"
#include "windows.h"

#define PIECE_ROWS 240              /* results of a block of columns that are computed together, at most */
#define PIECE_BYTES (1 << 17)       /* of their windows, where one window has not more */

typedef struct {
    isize size[3], out[3], kernel[3], stride[3], pad[3], dilation[3];
    isize batch, channels, columns, groups, each; /* columns and input channels of a group */
    isize depth, rows, piece;                     /* elements of a window, windows, and how many are copied together */
    isize wide;                                   /* columns with those that fill a block up */
    float_product_kernel product;
    const float *x, *w, *bias;
    float *y;
} float_conv_args;

static int is_depthwise(const float_conv_args *a) { return a->groups > 1 && a->each == 1 && a->columns == 1; }

int check_float_conv(checker *c, const int64_t *step) {
    const float_conv_step *s = (const float_conv_step *)(const void *)step;
    const int64_t *sizes[] = {&s->depth, &s->out_depth, &s->kernel_d, &s->stride_d, &s->dilation_d, &s->pad_d};
    float_conv_args *a = (float_conv_args *)plan_memory(c, sizeof *a);
    if (!a) return 0;
    isize *const to[] = {a->size, a->out, a->kernel, a->stride, a->dilation, a->pad};
    for (int n = 0; n < 6; n++)
        for (int i = 0; i < 3; i++) {
            if (sizes[n][i] > MAX_SIZE || sizes[n][i] < (n == 5 ? -MAX_SIZE : 1)) return refuse(c, "windows of no such size");
            to[n][i] = (isize)sizes[n][i];
        }
    if (s->batch < 0 || s->batch > MAX_SIZE || s->groups < 1 || s->channels < 1 || s->channels > MAX_SIZE || s->out_channels < 1 ||
        s->out_channels > MAX_SIZE || s->channels % s->groups || s->out_channels % s->groups)
        return refuse(c, "channels or groups of no such number");
    a->batch = (isize)s->batch, a->channels = (isize)s->channels, a->groups = (isize)s->groups;
    a->each = a->channels / a->groups, a->columns = (isize)s->out_channels / a->groups;
    isize elements = checked_product(a->batch, a->channels);
    a->rows = a->batch, a->depth = a->each;
    for (int i = 0; i < 3; i++) {
        elements = checked_product(elements, a->size[i]);
        a->rows = checked_product(a->rows, a->out[i]), a->depth = checked_product(a->depth, a->kernel[i]);
    }
    const isize window = checked_product(a->depth, (isize)sizeof(float));
    a->wide = is_depthwise(a) ? a->columns : packed_columns(a->columns);
    a->piece = window < 0 ? 1 : max_size(1, min_size(PIECE_ROWS, PIECE_BYTES / window));
    if (!is_depthwise(a)) c->scratch = checked_product(a->piece, checked_sum(window, PRODUCT_COLUMNS * (isize)sizeof(float)));
    c->prepared = a;
    return needs(c, s->x, elements, 4, "x") && needs(c, s->y, checked_product(a->rows, (isize)s->out_channels), 4, "y") &&
           needs(c, s->w, checked_product(a->groups, checked_product(a->depth, a->wide)), 4, "w") &&
           (s->bias < 0 || needs(c, s->bias, (isize)s->out_channels, 4, "bias"));
}

/* Where the window of a result begins. */
typedef struct {
    isize image, at[3];
} place;

static place place_of(const float_conv_args *a, isize row) {
    place p = {row, {0}};
    for (int i = 2; i >= 0; p.image /= a->out[i--]) p.at[i] = p.image % a->out[i] * a->stride[i] - a->pad[i];
    return p;
}

/* The pixels that a row of a window reads; NULL where it lies outside of the image. */
static const float *line_of(const float_conv_args *a, const place *p, isize kd, isize kh) {
    const isize d = p->at[0] + kd * a->dilation[0], h = p->at[1] + kh * a->dilation[1];
    const int inside = d >= 0 && d < a->size[0] && h >= 0 && h < a->size[1];
    return inside ? a->x + ((p->image * a->size[0] + d) * a->size[1] + h) * a->size[2] * a->channels : NULL;
}

/* The taps from *first on, of a row of a window, that lie inside of the image. */
static isize taps_of_row(const float_conv_args *a, const place *p, isize *first) {
    return taps_inside(p->at[2], a->dilation[2], a->kernel[2], a->size[2], first);
}

/* Copies the windows of a group for some rows of results. */
static void copy_windows(const float_conv_args *a, isize group, isize row, isize count, float *to) {
    const isize each = a->each, line = a->kernel[2] * each, step = a->dilation[2] * a->channels;
    for (; count; count--, row++) {
        const place p = place_of(a, row);
        isize first;
        const isize inside = taps_of_row(a, &p, &first);
        for (isize kd = 0; kd < a->kernel[0]; kd++)
            for (isize kh = 0; kh < a->kernel[1]; kh++, to += line) {
                const float *from = line_of(a, &p, kd, kh);
                if (!from || inside < a->kernel[2]) memset(to, 0, (size_t)line * sizeof *to);
                if (!from || !inside) continue;
                from += (p.at[2] + first * a->dilation[2]) * a->channels + group * each;
                float *tap = to + first * each;
                if (step == each)
                    memcpy(tap, from, (size_t)(inside * each) * sizeof *tap);
                else
                    for (isize k = 0; k < inside; k++, from += step, tap += each) memcpy(tap, from, (size_t)each * sizeof *tap);
            }
    }
}

/* An index is a piece of the rows and a block of the columns of a group. */
static void dense_float_conv(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const float_conv_args *a = (const float_conv_args *)given;
    const isize blocks = ceil_div(a->columns, PRODUCT_COLUMNS), pieces = ceil_div(a->rows, a->piece);
    float *windows = (float *)(void *)scratch, *results = windows + a->piece * a->depth;
    for (isize i = lo; i < hi; i++) {
        const isize block = i % blocks, piece = i / blocks % pieces, group = i / blocks / pieces, first = piece * a->piece;
        const isize rows = min_size(a->rows - first, a->piece), from = block * PRODUCT_COLUMNS;
        const isize columns = min_size(a->columns - from, PRODUCT_COLUMNS), wide = packed_columns(columns);
        if (!block || i == lo) copy_windows(a, group, first, rows, windows);
        a->product(windows, a->depth, rows, a->depth, a->w + (group * a->wide + from) * a->depth, wide, results, wide);
        const float *bias = a->bias ? a->bias + group * a->columns + from : NULL;
        for (isize r = 0; r < rows; r++) {
            float *y = a->y + ((first + r) * a->groups + group) * a->columns + from;
            for (isize n = 0; n < columns; n++) y[n] = results[r * wide + n] + (bias ? bias[n] : 0);
        }
    }
}

/* y[c] += Σ x[c] w[c] of taps that are `step` and `channels` apart. */
INLINE void add_taps(const float *x, isize step, const float *w, isize channels, isize taps, float *restrict y) {
    for (; taps > 2; taps -= 3, x += 3 * step, w += 3 * channels) {
        const float *restrict x1 = x + step, *restrict x2 = x1 + step;
        const float *restrict w1 = w + channels, *restrict w2 = w1 + channels;
        for (isize c = 0; c < channels; c++) y[c] += x[c] * w[c] + x1[c] * w1[c] + x2[c] * w2[c];
    }
    for (; taps; taps--, x += step, w += channels)
        for (isize c = 0; c < channels; c++) y[c] += x[c] * w[c];
}

/* An index is a row of results. */
MULTIVERSION static void depthwise_float_conv(const void *given, isize lo, isize hi, uint8_t *scratch) {
    const float_conv_args *a = (const float_conv_args *)given;
    const isize channels = a->channels, step = a->dilation[2] * channels;
    (void)scratch;
    for (isize i = lo * a->out[2]; i < hi * a->out[2]; i++) {
        const place p = place_of(a, i);
        float *y = a->y + i * channels;
        isize first;
        const isize inside = taps_of_row(a, &p, &first);
        for (isize c = 0; c < channels; c++) y[c] = a->bias ? a->bias[c] : 0;
        for (isize kd = 0; inside && kd < a->kernel[0]; kd++)
            for (isize kh = 0; kh < a->kernel[1]; kh++) {
                const float *from = line_of(a, &p, kd, kh);
                const float *w = a->w + ((kd * a->kernel[1] + kh) * a->kernel[2] + first) * channels;
                if (from) add_taps(from + (p.at[2] + first * a->dilation[2]) * channels, step, w, channels, inside, y);
            }
    }
}

void run_float_conv(frame *f, const int64_t *step, void *prepared) {
    const float_conv_step *s = (const float_conv_step *)(const void *)step;
    float_conv_args a = *(const float_conv_args *)prepared;
    a.x = at(f, s->x), a.w = at(f, s->w), a.bias = at(f, s->bias), a.y = at(f, s->y), a.product = float_product_of_isa();
    if (is_depthwise(&a)) {
        parallel(f, depthwise_float_conv, &a, a.rows / a.out[2], a.rows * a.depth * a.channels / 4);
    } else {
        const isize count = a.groups * ceil_div(a.columns, PRODUCT_COLUMNS) * ceil_div(a.rows, a.piece);
        parallel(f, dense_float_conv, &a, count, a.rows * a.depth * a.wide / 4);
    }
}
