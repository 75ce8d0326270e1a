/* Classifies images with a program file that has a plan, as that of the demonstration: no Python, no other library.

       intact8 demo
       make libintact8
       cc -Inative/c_api examples/c/classify.c -Lbuild -lintact8 -Wl,-rpath,build -o classify
       ./classify digits.safetensors images.bin

   images.bin holds float32 images one after the other, as the network takes them (numpy: images.tofile("images.bin")).
   Prints one line for each image: its class, and what the network gives for every class. */

#include <intact8.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double element(const intact8_array *array, const void *at, size_t i) {
    if (!strcmp(array->dtype, "float32")) return ((const float *)at)[i];
    return ((const unsigned char *)at)[i];
}

static int classify(intact8_program *net, const char *path) {
    const intact8_interface ends = intact8_describe(net);
    const intact8_array *image = &ends.input[0], *scores = &ends.output[0];
    const size_t classes = scores->bytes / (strcmp(scores->dtype, "float32") ? 1 : sizeof(float));
    if (ends.inputs != 1 || ends.outputs != 1) return fprintf(stderr, "expected one input and one output\n"), 1;
    FILE *file = fopen(path, "rb");
    void *x = malloc(image->bytes), *y = malloc(scores->bytes);
    intact8_runner *runner = intact8_prepare(net, 1);
    int failed = !file || !x || !y || !runner;
    while (!failed && fread(x, 1, image->bytes, file) == image->bytes) {
        const void *inputs[] = {x};
        void *outputs[] = {y};
        size_t best = 0;
        if ((failed = !intact8_run(runner, inputs, outputs))) break;
        for (size_t i = 1; i < classes; i++)
            if (element(scores, y, i) > element(scores, y, best)) best = i;
        printf("%zu:", best);
        for (size_t i = 0; i < classes; i++) printf(" %.9g", element(scores, y, i));
        printf("\n");
    }
    if (failed) fprintf(stderr, "%s\n", file ? intact8_error() : "the images cannot be opened");
    if (file) fclose(file);
    intact8_release(runner);
    free(x), free(y);
    return failed;
}

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: %s PROGRAM.safetensors IMAGES.bin\n", arguments[0]), 2;
    intact8_program *net = intact8_open(arguments[1]);
    if (!net) return fprintf(stderr, "%s\n", intact8_error()), 1;
    const int failed = classify(net, arguments[2]);
    intact8_close(net);
    return failed;
}
