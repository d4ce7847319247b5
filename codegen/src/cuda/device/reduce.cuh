// States of reductions: `add` takes a value and its position, `merge` another state. Positions decide ties, so that the order of
// adding does not matter for arg-reductions.

template <class T>
struct SumState {
    T value = (T)0;
    DEVICE void add(T x, i64) { value += x; }
    DEVICE void merge(const SumState& other) { value += other.value; }
    DEVICE T result(i64) const { return value; }
};
// Mean of no elements is NaN: 0 / 0.
template <class T>
struct MeanState {
    T value = (T)0;
    DEVICE void add(T x, i64) { value += x; }
    DEVICE void merge(const MeanState& other) { value += other.value; }
    DEVICE T result(i64 count) const { return value / (T)count; }
};
template <class T>
struct ProdState {
    T value = (T)1;
    DEVICE void add(T x, i64) { value *= x; }
    DEVICE void merge(const ProdState& other) { value *= other.value; }
    DEVICE T result(i64) const { return value; }
};
// `some` is false until a value came: no type needs an identity of its own.
template <class T>
struct AmaxState {
    T value = (T)0;
    u32 some = 0;
    DEVICE void add(T x, i64) {
        value = some ? max_(value, x) : x;
        some = 1;
    }
    DEVICE void merge(const AmaxState& other) {
        if (other.some) add(other.value, 0);
    }
    DEVICE T result(i64) const { return value; }
};
template <class T>
struct AminState {
    T value = (T)0;
    u32 some = 0;
    DEVICE void add(T x, i64) {
        value = some ? min_(value, x) : x;
        some = 1;
    }
    DEVICE void merge(const AminState& other) {
        if (other.some) add(other.value, 0);
    }
    DEVICE T result(i64) const { return value; }
};
template <class T>
struct AnyState {
    u32 value = 0;
    DEVICE void add(T x, i64) { value |= (u32)(x != (T)0); }
    DEVICE void merge(const AnyState& other) { value |= other.value; }
    DEVICE bool result(i64) const { return value != 0; }
};
template <class T>
struct AllState {
    u32 value = 1;
    DEVICE void add(T x, i64) { value &= (u32)(x != (T)0); }
    DEVICE void merge(const AllState& other) { value &= other.value; }
    DEVICE bool result(i64) const { return value != 0; }
};
// The first NaN, else the lowest position of the extreme value.
template <class T, bool largest>
struct ArgState {
    T value = (T)0;
    i64 index = -1;
    DEVICE void add(T x, i64 at) {
        bool nan = x != x, held = value != value;
        bool better = largest ? x > value : x < value;
        bool tie = x == value || (nan && held);
        if (index < 0 || (nan && !held) || (!held && better) || (tie && at < index)) {
            value = x;
            index = at;
        }
    }
    DEVICE void merge(const ArgState& other) {
        if (other.index >= 0) add(other.value, other.index);
    }
    DEVICE i64 result(i64) const { return index < 0 ? 0 : index; }
};
template <class T>
struct ArgmaxState : ArgState<T, true> {};
template <class T>
struct ArgminState : ArgState<T, false> {};
