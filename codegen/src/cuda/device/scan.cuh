// Inclusive prefix sums over a block of `threads`; `shared` holds threads / 32 values.
template <int threads, class T>
DEVICE T block_scan(T value, T* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
        T before = __shfl_up_sync(0xffffffffu, value, reach);
        if (lane >= reach) value += before;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = value;
    __syncthreads();
    T base = (T)0;
    for (int w = 0; w < warp; w++) base += shared[w];
    return value + base;
}
