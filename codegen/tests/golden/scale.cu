DEVICE void apply(const float a0, f16& r0) {
    const float v0 = (float)(a0 * (0.5f));
    r0 = cast<f16>(v0);
}

extern "C" __global__ void __launch_bounds__(256) mul_f16(const f16* __restrict__ x0, f16* __restrict__ y1, i64 d0) {
    const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * 8;
    if (at >= d0) return;
    i64 i_rest = (i64)at;
    const i64 i0 = i_rest;
    const i64 o0 = (i64)i0;
    const i64 o1 = (i64)i0;
    if (at + 8 <= d0) {
        const Pack<f16, 8> p0 = *(const Pack<f16, 8>*)(x0 + o0);
        Pack<f16, 8> q0;
#pragma unroll
        for (int e = 0; e < 8; e++) apply(up(p0.at[e]), q0.at[e]);
        *(Pack<f16, 8>*)(y1 + o1) = q0;
    } else {
        for (int e = 0; at + e < d0; e++) apply(up(x0[o0 + e]), y1[o1 + e]);
    }
}
