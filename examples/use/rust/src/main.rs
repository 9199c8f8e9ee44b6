//! Runs a layer of four heads and prints y: `cargo run --release`.
use layer::{Packed, Rows, Status, Workspace, D_MODEL, SEQ};

/// Stands in for your weights and inputs: numbers in -1..1.
fn numbers<const N: usize>(mut seed: u32) -> [f32; N] {
    [0.0; N].map(|_: f32| {
        seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
        (seed >> 8) as f32 / 8388608.0 - 1.0
    })
}

fn main() -> Result<(), Status> {
    let packed = Packed::new(&numbers(1), &numbers(2), &numbers(3), &numbers(4))?;
    let (x, mut y): (Rows, Rows) = (numbers(5), [0.0; SEQ * D_MODEL]);
    let mut workspace = Workspace::NEW;
    workspace.run(&packed, &x, &mut y)?;
    y.iter().for_each(|value| println!("{value}"));
    Ok(())
}
