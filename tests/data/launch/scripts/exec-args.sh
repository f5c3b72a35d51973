#!/bin/sh
. /srv/env.sh
exec "$@"
