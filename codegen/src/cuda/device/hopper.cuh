// PTX wrappers of what Hopper (sm_90a) adds: mbarriers, the bulk copy engine (TMA), warpgroup products (wgmma), clusters (PTX ISA,
// "Asynchronous copies", "mbarrier", "Asynchronous warpgroup-level matrix instructions").

// Made by the driver; a kernel has it as a __grid_constant__ parameter.
struct alignas(64) TensorMap { u64 opaque[16]; };

// ---- clusters ---------------------------------------------------------------------------------------------------------

DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// The value at this address of shared memory in block `rank` of the cluster.
DEVICE i32 load_of_block(const i32* pointer, u32 rank) {
    i32 value;
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %1, %2;\nld.shared::cluster.s32 %0, [remote];\n}"
                 : "=r"(value) : "r"((u32)__cvta_generic_to_shared(pointer)), "r"(rank) : "memory");
    return value;
}
// Stores it there.
DEVICE void store_of_block(const i32* pointer, u32 rank, i32 value) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nst.shared::cluster.s32 [remote], %2;\n}" ::"r"(
                     (u32)__cvta_generic_to_shared(pointer)),
                 "r"(rank), "r"(value)
                 : "memory");
}
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
DEVICE void cluster_sync() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }

// ---- blocks of one grid -----------------------------------------------------------------------------------------------

DEVICE u32 load_acquire(const u32* pointer) {
    u32 x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(pointer) : "memory");
    return x;
}
DEVICE void add_release(u32* pointer) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(pointer) : "memory"); }
// Past the first-level cache, which does not see what other blocks wrote.
DEVICE float load_from_others(const float* pointer) {
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(pointer) : "memory");
    return x;
}
DEVICE u16 load_from_others(const u16* pointer) {
    u16 x;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(x) : "l"(pointer) : "memory");
    return x;
}
DEVICE i64 load_from_others(const i64* pointer) {
    i64 x;
    asm volatile("ld.global.cg.s64 %0, [%1];" : "=l"(x) : "l"(pointer) : "memory");
    return x;
}

// ---- launches that overlap --------------------------------------------------------------------------------------------

// Lets the next kernel begin, and waits for all that the kernel before wrote. Nothing that a kernel writes may be touched earlier; a kernel
// whose launch does not overlap goes on at once (PTX ISA, griddepcontrol).
DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory"); }

// What is read through this pointer from here on is not read earlier: the compiler may move reads of what a kernel never writes, and did move
// them, past anything else.
template <class Pointer>
DEVICE void read_from_here(Pointer& pointer) { asm volatile("" : "+l"(pointer)); }
DEVICE void wait_for_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Stores four floats at this address of block `rank`'s shared memory.
DEVICE void store_shared_of(u32 rank, u32 address, float a, float b, float c, float d) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nst.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};\n}" ::"r"(address),
        "r"(rank), "f"(a), "f"(b), "f"(c), "f"(d)
        : "memory");
}
DEVICE void store_shared_16(u32 address, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
DEVICE void load_shared_16(float (&x)[4], u32 address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(address) : "memory");
}

// ---- mbarriers --------------------------------------------------------------------------------------------------------

DEVICE void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the cluster and to the copy engine.
DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival that also announces `bytes` from the copy engine.
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is complete.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra.uni AGAIN;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
DEVICE void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// Arrives at the barrier with this address in block `rank` of the cluster.
DEVICE void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(
                     barrier),
                 "r"(rank)
                 : "memory");
}
// One arrival once all earlier cp.async of this thread are complete.
DEVICE void barrier_arrive_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- bulk copies ------------------------------------------------------------------------------------------------------

// Fetches a map ahead of its first use.
DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// The tile at (x, y, z), its bytes counted at `barrier`.
DEVICE void load_tile(u32 to, const TensorMap& map, u32 barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
// The same to both blocks of a cluster of two, at the same addresses, counted at the barrier of each.
DEVICE void load_tile_for_both(u32 to, const TensorMap& map, u32 barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], "
        "[%2], %6;" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"((u16)3)
        : "memory");
}

// A tile from shared memory, under the 128-byte swizzle, to (x, y, z); what lies outside the map is left out.
DEVICE void store_tile(const TensorMap& map, u32 from, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(from), "r"(x),
                 "r"(y), "r"(z)
                 : "memory");
}
// Stores of this thread since the last commit form a group.
DEVICE void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all but the latest `pending` groups have read their shared memory.
template <int pending>
DEVICE void stores_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory"); }

// ---- warpgroups -------------------------------------------------------------------------------------------------------

// Waits for `threads` threads at a barrier of their own; 0 is __syncthreads.
DEVICE void group_sync(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// The same without waiting: for those who do.
DEVICE void group_arrive(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// What generic accesses wrote to shared memory, ordered before what the tensor cores read.
DEVICE void fence_shared_for_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// The main loop of warpgroup products: calls `multiply(stage, step)` for each of `steps` stages of a ring when it is full, and `release(stage)`
// when its products are done. Those of one stage stay in flight; of the last they still are at the end, and its stage, which is returned, is
// the caller's to release. `copied`: threads wrote to the stages, not the copy engine alone.
template <bool copied, class Ring, class Place, class Multiply, class Release>
DEVICE int multiply_stages(const Ring& ring, Place& at, int steps, const Multiply& multiply, const Release& release) {
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        barrier_wait(ring.full(at.stage), at.phase);
        if (copied) fence_shared_for_tensor_cores();
        wgmma_fence();
        multiply(at.stage, step);
        wgmma_commit();
        if (step > 0) {
            wgmma_wait<1>();
            release(before);
        }
        before = at.stage;
        at.advance();
    }
    return before;
}

template <int count>
DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count>
DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// Waits for `threads` threads at one of a block's barriers.
DEVICE void named_barrier_sync(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// Transposes four 8×8 matrices of 16-bit elements; a lane holds two neighbours of row lane / 4 of each, and gives the address of column
// lane % 8 of matrix lane / 8.
DEVICE void store_matrices_transposed(u32 shared, const u32 (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}
DEVICE void store_shared_4(u32 shared, i32 x) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(shared), "r"(x) : "memory"); }
DEVICE i32 load_shared_4(u32 shared) {
    i32 x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
    return x;
}
DEVICE Pack<u32, 4> load_shared_16(u32 shared) {
    Pack<u32, 4> x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.at[0]), "=r"(x.at[1]), "=r"(x.at[2]), "=r"(x.at[3]) : "r"(shared) : "memory");
    return x;
}

// Descriptor of a K-major tile of 128-byte rows under the 128-byte swizzle; eight rows are 1024 bytes. A step of n bytes along K adds n / 16.
// The same describes 64 elements of M by K with M contiguous: a row of 128 bytes is then one k, and a step of n along K adds 8 n.
DEVICE u64 matrix_descriptor(u32 shared) {
    return (u64)((shared & 0x3ffff) >> 4) | ((u64)1 << 16) | ((u64)(1024 >> 4) << 32) | ((u64)1 << 62);
}

// Descriptor of a tile whose rows are contiguous: chunks of 64 rows, each k of a chunk being 128 bytes under the 128-byte swizzle. A step of
// 16 along K adds 128 (PTX ISA, "Strides", MN-major: the leading offset leads to the next chunk, the stride offset to the next eight k).
DEVICE u64 matrix_descriptor_of_rows(u32 shared, u32 chunk_bytes) {
    return (u64)((shared & 0x3ffff) >> 4) | ((u64)(chunk_bytes >> 4) << 16) | ((u64)(1024 >> 4) << 32) | ((u64)1 << 62);
}
