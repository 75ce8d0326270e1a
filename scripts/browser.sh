#!/bin/sh
# Installs Debian's Chromium, in which tests look at pages, where there is no browser and this user may install one.
# It never fails: without a browser those tests are skipped, and the end of the test run says so.
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium, for the tests of pages"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium; } >/dev/null 2>&1 && exit 0
fi
echo "no browser: tests of pages will be skipped (apt-get install chromium)"
