(** Sums of products stay within int32, sums of pairs within int16 (docs/arithmetic.md, 3; certificates). *)

From Coq Require Import ZArith List Lia.
Import ListNotations.
Open Scope Z_scope.

(** Weights w and inputs x above their zero points, |x| <= 255: uint8 minus a zero point of uint8. *)
Definition fits (products : list (Z * Z)) : Prop := Forall (fun p => Z.abs (snd p) <= 255) products.
Definition sum (products : list (Z * Z)) : Z := fold_right (fun p s => fst p * snd p + s) 0 products.
Definition sum_of_sizes (products : list (Z * Z)) : Z := fold_right (fun p s => Z.abs (fst p) + s) 0 products.

Lemma sum_bound products : fits products -> Z.abs (sum products) <= 255 * sum_of_sizes products.
Proof.
induction 1 as [| [w x] rest size others step]; [simpl; lia |].
unfold sum, sum_of_sizes in *. cbn [fold_right fst snd] in *.
assert (Z.abs (w * x) <= 255 * Z.abs w) by (rewrite Z.abs_mul, Z.mul_comm; apply Z.mul_le_mono_nonneg_r; lia). lia.
Qed.

Lemma sizes_positive products : 0 <= sum_of_sizes products.
Proof. induction products as [| p rest step]; simpl; lia. Qed.

Lemma sizes_append a b : sum_of_sizes (a ++ b) = sum_of_sizes a + sum_of_sizes b.
Proof. induction a as [| p rest step]; simpl; [reflexivity |]. lia. Qed.

(** However the products are ordered and cut, every partial sum, with the bias or without it, is an int32. *)
Theorem no_overflow products part rest bias :
  fits products -> 255 * sum_of_sizes products + Z.abs bias < 2 ^ 31 -> products = part ++ rest ->
  Z.abs (sum part) < 2 ^ 31 /\ Z.abs (sum part + bias) < 2 ^ 31.
Proof.
intros all certificate ->. apply Forall_app in all. destruct all as [inside _].
pose proof (sum_bound part inside). rewrite sizes_append in certificate. pose proof (sizes_positive rest). lia.
Qed.

(** x86 without VNNI adds two products of uint8 and int8 in int16, and saturates. The certificate looks at the two largest
    weights of a channel. *)
Theorem no_saturation v w largest second x y :
  0 <= x <= 255 -> 0 <= y <= 255 ->
  Z.abs v + Z.abs w <= largest + second -> (largest + second) * 255 <= 32767 ->
  -32768 <= v * x + w * y <= 32767.
Proof.
intros. assert (Z.abs (v * x) <= Z.abs v * 255) by (rewrite Z.abs_mul; apply Z.mul_le_mono_nonneg_l; lia).
assert (Z.abs (w * y) <= Z.abs w * 255) by (rewrite Z.abs_mul; apply Z.mul_le_mono_nonneg_l; lia). lia.
Qed.
