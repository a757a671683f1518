# Sourced by run_and_time.sh and run_tests.sh: sets PYTHON to an interpreter that has what is needed.
#   use_python MODULE EXTRAS...   EXTRAS e.g. "" or "[test,tf]"; a .venv is made unless `python3` can import MODULE already
#   In the .venv is NVIDIA DALI too, if there is a wheel of it: without it the loader brings the same batches.
use_python() {
    local module=$1 extras=$2 sum stamp
    if [ ! -d .venv ] && python3 -c "import bert_mlperf.kernels, $module" 2>/dev/null; then
        PYTHON=python3
        return
    fi
    PYTHON=.venv/bin/python
    sum=$(cat setup_env.sh pyproject.toml constraints.txt data_prep/examples.c | cksum | tr ' ' -)
    stamp=".venv/.installed$extras-$sum"
    [ -e "$stamp" ] && return
    [ -z "$extras" ] && compgen -G ".venv/.installed*-$sum" >/dev/null && return  # more than is needed is there
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "error: python3 is $(python3 --version 2>&1), bert-mlperf needs Python 3.11 or newer" >&2
        exit 2
    fi
    if ! command -v "${CC:-gcc}" >/dev/null && ! command -v cc >/dev/null; then
        echo "error: no C compiler is found, data_prep/examples.c needs one; install gcc" >&2
        exit 2
    fi
    echo "install  bert-mlperf$extras into .venv (once, a few minutes)" >&2
    local start=$SECONDS
    python3 -m venv .venv || exit 1
    if ! $PYTHON -m pip install --quiet --constraint constraints.txt --editable ".$extras" >.venv/install.log 2>&1; then
        tail -n 20 .venv/install.log >&2
        echo "error: the installation failed, see .venv/install.log" >&2
        exit 1
    fi
    install_dali
    touch "$stamp"
    echo "install  done in $((SECONDS - start)) s" >&2
}

# For CUDA 13 if the driver brings that, else for CUDA 12, which a machine without a GPU takes too.
install_dali() {
    local dali=nvidia-dali-cuda120
    nvidia-smi 2>/dev/null | grep -qE 'CUDA [A-Z ]*Version: *13' && dali=nvidia-dali-cuda130
    $PYTHON -m pip install --quiet --only-binary $dali --constraint constraints.txt $dali >>.venv/install.log 2>&1 ||
        echo "install  goes on without $dali, see .venv/install.log" >&2
}
