# A thin front of `cargo xtask`; everything works without just.

# The main job, on a local cluster that it brings up.
demo *args:
    cargo xtask demo {{args}}

# All checks.
test *args:
    cargo xtask test {{args}}

# The figures of the docs.
bench *args:
    cargo xtask bench {{args}}

# A local three-node Kubernetes: up, down, status, load, cut, heal.
testbed *args:
    cargo xtask testbed {{args}}

# Rules of the machine, broken one at a time: each must be found by its check.
mutants *args:
    cargo xtask mutants {{args}}

# Licenses, advisories, sources.
deny:
    cargo deny check

# Gives the API group another name, everywhere: code, manifests, examples, tests and docs. Look at the result, run the tests,
# and commit it. A cluster keeps the definitions of the old group; no object is carried over.
rename-group old new:
    git grep -lzF '{{old}}' | xargs -0 sed -i 's/{{replace(old, ".", "[.]")}}/{{new}}/g'

# Many more cases of the machine's properties than the tests try, other ones each time.
properties cases="200000":
    PROPTEST_CASES={{cases}} cargo test -p machine

# All states of a world of the model, of any size: just world --members 3 --faults 1 --records 1 --epochs 2
world *args:
    cargo run --release -p sim -- search {{args}}

# Whole databases in virtual time under faults that a seed chooses, other seeds each time: ten minutes of agents alone, and ten of
# agents with an operator and a user who edits.
sim seconds="600":
    cargo run -p sim -- run --for {{seconds}} --from $(date +%s)000
    cargo run -p sim -- run --whole --for {{seconds}} --from $(date +%s)000
