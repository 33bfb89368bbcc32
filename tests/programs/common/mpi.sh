# tests/programs/common/mpi.sh: the environment in which tests start jobs under
# Open MPI or MPICH. The jobs run on a machine with fewer processors than ranks,
# as root, and beside other jobs, and their command lines stay those that a user
# types.
# SPDX-License-Identifier: MIT

# Open MPI allows one rank a processor, and refuses to run as root. Version 5
# reads the variables with PRTE, version 4 those with OMPI.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# Without this all jobs that run at the same time bind their ranks to the first
# processors.
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
# Only this machine: no ssh, and no network but loopback. Version 5, which has
# no orterun, does not start on loopback alone.
export OMPI_MCA_pml=ob1
if command -v orterun >/dev/null; then
    export OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader,tcp
    export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
else
    export OMPI_MCA_btl=self,sm
fi

# Open MPI does not free all its memory at the end. A job hangs if one
# collective takes a minute: a busy machine makes the whole job slow, and no
# collective that slow.
openmpi="env ASAN_OPTIONS=detect_leaks=0 DS_TIMEOUT=60 mpirun.openmpi"
