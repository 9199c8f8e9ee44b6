# What each example's run.sh begins with: `example=NAME; . examples/start.sh`. Help, and the refusal of an option, are
# at once. Else it builds mhagen and installs the example's packages into the folder $VENV;
# $python runs them, or is empty where nothing came from PyPI.
requirements=examples/$example/requirements.txt
help=$(python3 -B "examples/$example/options.py" "$@")
if [ -n "$help" ]; then
  echo "$help"
  exit
fi

# The tests' Python has the same packages.
if [ -z "${VENV:-}" ]; then
  VENV=build/venv
  cmp -s "$requirements" "$VENV/installed/examples_${example}_requirements.txt" || VENV=build/venv-$example
fi

[ -x build/mhagen ] || ninja build/mhagen

python=
if sh scripts/venv.sh "$VENV" "$requirements"; then
  export PYTHONPATH=examples
  python=$VENV/bin/python
else
  echo "$example: nothing from PyPI; what pip says is in $VENV.log"
fi
