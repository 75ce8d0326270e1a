#!/usr/bin/env bash
# Compiles the native engine for 64-bit Arm and runs it under emulation, by hand:
#
#   scripts/arm.sh FOLDER [PROGRAMS [NETWORK...]]
#
# Random convolutions (1000), as many programs of layers with float32 results, and whole networks are compared with the
# reference, on CPUs with i8mm, with dot products, and with NEON alone. Needs the Debian packages gcc-aarch64-linux-gnu,
# libc6-dev-arm64-cross, qemu-user and debootstrap, and a Python with torch and intact8 as $PYTHON. Emulation says nothing
# about speed.
set -euo pipefail
folder=$(realpath -m "$1") count=${2:-1000}
shift $(($# < 2 ? $# : 2))
networks=${*:-resnet18 mobilenet_v2 mobilenet_v3_small squeezenet1_1}
top=$(realpath "$(dirname "$0")/..") python=${PYTHON:-python3}
root=$folder/root
mkdir -p "$folder"

if [ ! -e "$root/usr/bin/python3" ]; then # Python of arm64, and packages
    debootstrap --foreign --arch=arm64 --variant=minbase --include=python3 bookworm "$root" > "$folder/debootstrap.log"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    "$python" -m pip download -q -d "$folder/wheels" --only-binary=:all: --python-version 3.11 \
        --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 \
        numpy archspec filelock safetensors typer rich tomli-w
    for wheel in "$folder"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$folder/packages"; done
fi

rm -rf "$folder/src" && mkdir "$folder/src" && cp -r "$top/src/intact8" "$folder/src/"
find "$folder/src" -name '*.so' -delete
aarch64-linux-gnu-gcc -std=c11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -fPIC -shared -Wall -Wextra -DPy_LIMITED_API=0x030A0000 \
    -I"$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" "$top"/native/engine/*.c -pthread -lm \
    -o "$folder/src/intact8/engines/native/_library.abi3.so"

if [ ! -e "$folder/networks" ]; then
    mkdir "$folder/networks"
    PYTHONPATH=$top/src "$python" "$top/scripts/networks.py" save "$folder/networks" $networks
fi

run() { # CPU, instruction set or nothing, arguments of Python
    QEMU_LD_PREFIX=$root PYTHONPATH=$folder/src:$folder/packages INTACT8_ISA=$2 OPENBLAS_NUM_THREADS=1 \
        qemu-aarch64 -cpu "$1" "$root/usr/bin/python3.11" "${@:3}"
}
for cpu in max: max:neon_dot max:neon max:plain cortex-a76: cortex-a53:; do
    echo "cpu ${cpu%:*}"
    for programs in random_convolutions random_float_results; do
        (cd "$top" && run "${cpu%:*}" "${cpu#*:}" -m "tests.engines.native.$programs" "$count" 5)
    done
    run "${cpu%:*}" "${cpu#*:}" "$top/scripts/networks.py" check "$folder/networks"
done
