//! Generates the kernel for all CPUs of this architecture, compiles it with $CC, and writes its sizes as Rust. It
//! takes no crate.
use std::{env, process::Command};

const BUILD: &str = r#"
: ${MHAGEN:=mhagen}
case $(uname -m) in x86_64) isa=x86 ;; aarch64 | arm64) isa=arm ;; *) isa=scalar ;; esac
$MHAGEN gen h=4 d_model=32 dk=8 seq=16 isa=$isa name=layer -o "$OUT_DIR" --quiet
cp flat.c "$OUT_DIR"
cd "$OUT_DIR"
${CC:-cc} -O2 -fPIC -DMHAGEN_NO_POOL -c layer*.c mhagen.c flat.c
ar rcs liblayer.a layer*.o mhagen.o flat.o
sed -n 's/^#define LAYER_\([A-Z_]*\) \([0-9]*\)$/pub const \1: usize = \2;/p' layer.h > sizes.rs
"#;

fn main() {
    assert!(Command::new("sh").args(["-ec", BUILD]).status().unwrap().success());
    println!("cargo:rustc-link-search=native={}", env::var("OUT_DIR").unwrap());
    println!("cargo:rustc-link-lib=static=layer");
    println!("cargo:rerun-if-changed=flat.c");
    println!("cargo:rerun-if-env-changed=MHAGEN");
}
