// Attention from C++: a context with automatic destruction, errors as exceptions, a causal mask.
//
// Build it by hand with:
//   c++ attention.cpp $(pkg-config --cflags --libs multihead) -Wl,-rpath,$(pkg-config --variable=libdir multihead)
#include <multihead/attention.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace
{

struct Destroy {
    void operator()(mha_context *context) const
    {
        mha_context_destroy(context);
    }
};
using Context = std::unique_ptr<mha_context, Destroy>;

void check(mha_status status)
{
    if (status != MHA_OK) throw std::runtime_error(mha_error_detail());
}

Context make_context()
{
    mha_context *context = nullptr;
    check(mha_context_create(nullptr, &context));
    return Context(context);
}

mha_tensor view(std::vector<float> &data, int64_t length, int64_t width)
{
    const int64_t shape[] = {1, 1, length, width};
    return mha_tensor_contiguous(data.data(), MHA_F32, 4, shape);
}

} // namespace

int main()
try {
    std::vector<float> q = {2, 1, 0, 3}, k = {1, 0, 0, 1}, v = {1, 10, 2, 20}, o(4);
    const mha_tensor Q = view(q, 2, 2), K = view(k, 2, 2), V = view(v, 2, 2), O = view(o, 2, 2);
    auto causal = MHA_INIT(mha_attention_desc);
    causal.flags = MHA_ATTENTION_CAUSAL;

    const Context context = make_context();
    check(mha_attention_forward(context.get(), &causal, &Q, &K, &V, &O, nullptr));
    std::printf("%.4f %.4f\n%.4f %.4f\n", o[0], o[1], o[2], o[3]);

    const mha_tensor wrong = view(k, 1, 4); // length 4 each; 2 queries
    try {
        check(mha_attention_forward(context.get(), &causal, &Q, &wrong, &V, &O, nullptr));
    } catch (const std::runtime_error &error) {
        std::printf("%s\n", error.what());
    }
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
