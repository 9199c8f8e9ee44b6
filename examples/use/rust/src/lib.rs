//! The kernel as safe Rust, without the standard library and without an allocator.
#![no_std]
include!(concat!(env!("OUT_DIR"), "/sizes.rs"));

pub type Matrix = [f32; D_MODEL * D_MODEL]; // y = x W, row-major
pub type Rows = [f32; SEQ * D_MODEL];

extern "C" {
    fn layer_flat_pack(wq: &Matrix, wk: &Matrix, wv: &Matrix, wo: &Matrix, packed: *mut u8) -> i32;
    fn layer_flat_text(status: i32) -> *const u8;
    fn layer_flat_run(x: &Rows, y: &mut Rows, packed: *const u8, workspace: *mut u8) -> i32;
}

/// A status of mhagen.h other than MHAGEN_OK; as a text it says what is wrong.
#[derive(PartialEq)]
pub struct Status(pub i32);

impl core::fmt::Debug for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        let text = unsafe { layer_flat_text(self.0) };
        let length = (0..).take_while(|&i| unsafe { *text.add(i) } != 0).count();
        let bytes = unsafe { core::slice::from_raw_parts(text, length) };
        f.write_str(core::str::from_utf8(bytes).unwrap_or("layer"))
    }
}

fn result(status: i32) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

/// Packed weights, which threads may share.
#[repr(C, align(64))]
pub struct Packed([u8; PACKED_BYTES]);

impl Packed {
    pub fn new(wq: &Matrix, wk: &Matrix, wv: &Matrix, wo: &Matrix) -> Result<Packed, Status> {
        let mut packed = Packed([0; PACKED_BYTES]);
        // Here and below the types say the sizes and the alignment that layer.h asks for.
        result(unsafe { layer_flat_pack(wq, wk, wv, wo, packed.0.as_mut_ptr()) }).map(|()| packed)
    }
}

/// What a run needs besides; a thread has its own.
#[repr(C, align(64))]
pub struct Workspace([u8; WORKSPACE_BYTES]);

impl Workspace {
    pub const NEW: Workspace = Workspace([0; WORKSPACE_BYTES]);

    pub fn run(&mut self, packed: &Packed, x: &Rows, y: &mut Rows) -> Result<(), Status> {
        result(unsafe { layer_flat_run(x, y, packed.0.as_ptr(), self.0.as_mut_ptr()) })
    }
}
